# shellcheck shell=bash
# Sourced by parts.sh: nodes as machines. The first is this machine itself; each further one is a network namespace and a mount
# namespace in it, held by a process called `machine`: what nodes keep at fixed places (the kubelet's folder, CDI specs, logs) is its
# own there, all else is this machine's. When its processes are dead its mounts, network devices and rules are gone too.

at() { # NODE: what follows is about this one
  local number
  node=$1
  if [ "$node" = "$first" ]; then
    number=1 home=$dir cgroup=hami-cluster
  else
    number=${node##*-} home=$dir/$node cgroup=hami-cluster-$node
  fi
  address=$network.$number
  pods_network=10.$((243 + number)).0.0/16
}
nodes() { # all that there ever were since the last `down --wipe`
  local folder
  echo "$first"
  for folder in "$dir"/node-[2-9]/; do [ ! -d "$folder" ] || basename "$folder"; done
}
is_node() { [ "$1" = "$first" ] || [[ $1 == node-[2-9] ]]; }

into() { # the words that take a command into the node's namespaces
  [ "$node" = "$first" ] || echo "nsenter --target $(pids machine) --mount --net --"
}
inside() { # COMMAND...
  local enter
  read -ra enter <<<"$(into)"
  "${enter[@]}" "$@"
}

# --- what it is made of ---------------------------------------------------------------------------------------------

key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null ||
  openssl ecparam -genkey -name prime256v1 -noout -out "$1"; }
certificate() { # NAME SUBJECT [SAN]: in the node's folder, and a kubeconfig that uses it
  local pki=$home/pki
  key "$pki/$1.key"
  openssl req -new -key "$pki/$1.key" -out "$pki/$1.csr" -subj "$2"
  openssl x509 -req -in "$pki/$1.csr" -CA pki/ca.crt -CAkey pki/ca.key -CAcreateserial -days 3650 -out "$pki/$1.crt" 2>/dev/null \
    -extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=%s\n' "${3:-DNS:localhost}")
  cat >"$pki/$1.kubeconfig" <<K
apiVersion: v1
kind: Config
clusters: [{name: hami, cluster: {server: "https://$network.1:6443", certificate-authority-data: $(base64 -w0 pki/ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$pki/$1.crt"), client-key-data: $(base64 -w0 "$pki/$1.key")}}]
contexts: [{name: hami, context: {cluster: hami, user: $1}}]
current-context: hami
K
}

configure() { # the node's files
  mkdir -p "$home"/{pki,log,containerd,cni}
  certificate kubelet "/O=system:nodes/CN=system:node:$node" "DNS:$node,IP:$address"
  configure_network
  configure_runtime
  configure_kubelet
}

configure_network() {
  cat >"$home/cni/10-bridge.conflist" <<K
{"cniVersion": "0.4.0", "name": "$bridge", "plugins": [
  {"type": "bridge", "bridge": "$bridge", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$home/cni/leases", "ranges": [[{"subnet": "$pods_network"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}}]}
K
  cat >"$home/proxy.yaml" <<K
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $dir/pki/proxy.kubeconfig}
mode: iptables
hostnameOverride: $node
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: $bridge}
# The machine's settings stay as they are.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {localhostNodePorts: false}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
K
}

configure_runtime() {
  cat >"$home/containerd.toml" <<K
version = 3
root = "$home/containerd/root"
state = "$home/containerd/state"
[grpc]
  address = "$home/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "localhost/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  # Machines without CAP_SYS_RESOURCE can't lower oom_score_adj; runc would die of it.
  restrict_oom_score_adj = true
  # Below our own folder, so that what is left over can be told from others'.
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "$home/cni"
K
}

configure_kubelet() {
  cat >"$home/kubelet.yaml" <<K
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $dir/pki/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://$home/containerd.sock
tlsCertFile: $home/pki/kubelet.crt
tlsPrivateKeyFile: $home/pki/kubelet.key
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failCgroupV1: false
failSwapOn: false
# More than the default of 110: the bench starts 200.
maxPods: 250
oomScoreAdj: 0
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
clusterDomain: cluster.local
clusterDNS: [10.96.0.10]
imageMinimumGCAge: 24h
evictionHard: {memory.available: 100Mi, nodefs.available: "1%", imagefs.available: "1%"}
# A failed prepare is tried again with the next sync of its pod.
syncFrequency: 10s
${api_qps:+kubeAPIQPS: $api_qps}
${api_qps:+kubeAPIBurst: $((2 * ${api_qps:-0}))}
featureGates: {$(sed 's/=/: /g; s/,/, /g' <<<"$gates")}
K
}

import_images() {
  local image complaints
  for image in "$dir"/images/*.tar; do
    complaints=$("$bin/ctr" -a "$home/containerd.sock" -n k8s.io images import --local "$image" 2>&1) || { echo "$complaints" >&2; return 1; }
  done
}

# --- the network between nodes, of this machine ---------------------------------------------------------------------

lay_network() {
  ip link show "$nodes_bridge" >/dev/null 2>&1 || ip link add "$nodes_bridge" type bridge
  ip address replace "$network.1/24" dev "$nodes_bridge"
  ip link set "$nodes_bridge" up
  # Services, for the API server: kube-proxy sends these elsewhere, and without a route it would not come to that.
  ip route replace 10.96.0.0/16 dev "$nodes_bridge"
  share_mounts
}

share_mounts() { # as systemd has it: what pods mount where they are allowed to is seen by the node
  local folder target
  for folder in / /usr /run; do
    target=$(findmnt -n -o TARGET -T "$folder")
    case $(findmnt -n -o PROPAGATION --mountpoint "$target" | tail -n1) in
      *shared*) ;;
      *) mount --make-shared "$target" && echo "$target" >>made-shared ;;
    esac
  done
}

take_up_network() {
  local target tables
  if [ -n "$version" ] && [ -x "$bin/kube-proxy" ]; then "$bin/kube-proxy" --cleanup >/dev/null 2>&1 || true; fi
  for tables in iptables ip6tables; do # what it leaves
    "$tables" -w 5 -D INPUT -j KUBE-FIREWALL && "$tables" -w 5 -D OUTPUT -j KUBE-FIREWALL
    "$tables" -w 5 -F KUBE-FIREWALL && "$tables" -w 5 -X KUBE-FIREWALL
  done 2>/dev/null || true
  ip link delete "$nodes_bridge" 2>/dev/null || true
  while read -r target; do mount --make-private "$target" || true; done < <(cat made-shared 2>/dev/null)
  rm -f made-shared
}

# --- power ----------------------------------------------------------------------------------------------------------

machine_runs() { [ "$(cat "/proc/$(pids machine)/comm")" = machine ]; }

switch_on() { # a further node: its namespaces, network and folders
  local pid place
  running machine && return
  mkdir -p "$home"/{log,kubelet,cdi,cni/results,vgpu,var-log}
  ln -sf "$(command -v sleep)" "$home/machine"
  CLUSTER_MARK=$dir CLUSTER_NODE=$node setsid nohup unshare --mount --net --propagation private "$home/machine" infinity \
    >"$home/log/machine.log" 2>&1 </dev/null 9>&- &
  wait_until "the machine $node" machine_runs
  pid=$(pids machine)
  ip link add "$node" type veth peer name eth0 netns "$pid"
  ip link set "$node" master "$nodes_bridge" up
  ip route replace "$pods_network" via "$address" 2>/dev/null || true
  inside sh -euc "
    ip link set lo up
    ip address add $address/24 dev eth0
    ip link set eth0 up
    ip route add default via $network.1
    echo 1 >/proc/sys/net/ipv4/ip_forward
    mount --make-rshared /
    mkdir -p $kubelet_root /var/run/cdi /var/lib/cni /usr/local/vgpu
    mount --bind $home/kubelet $kubelet_root
    mount --bind $home/cni /var/lib/cni
    mount --bind $home/cdi /etc/cdi
    mount --bind $home/vgpu /usr/local/vgpu
    mount --bind $home/var-log /var/log
    mount -t tmpfs cdi /var/run/cdi
  "
}

halt() { # stop the node; what is left is what a machine keeps over a reboot
  local victims try
  stop kubelet
  stop containerd
  for try in $(seq 100); do
    victims=$({ contained; of "$node"; } | sort -u)
    [ -n "$victims" ] || break
    # shellcheck disable=SC2086
    kill -KILL $victims 2>/dev/null || true
    sleep 0.05
  done
  if [ "$node" = "$first" ]; then
    clear_machine
  else
    ip link delete "$node" 2>/dev/null || true
    rm -rf "$home/cni/results"
  fi
  rm -rf "$home"/containerd/state "$home"/containerd.sock "$home"/containerd.sock.ttrpc "$home"/cni/leases
  # Cgroups of killed containers, deepest first; those in use stay, as rmdir refuses them.
  find /sys/fs/cgroup -depth -type d \( -path "*/$cgroup" -o -path "*/$cgroup/*" \) -exec rmdir {} \; 2>/dev/null || true
}

clear_machine() { # what goes by itself with the namespaces of a further node
  local cached container
  while [ /usr/local/vgpu -ef vgpu ] && mountpoint -q /usr/local/vgpu; do umount -R -l /usr/local/vgpu || break; done
  awk '{print $2}' /proc/self/mounts | grep -E "^($dir_re|${kubelet_root//./\\.}/(pods|plugins))/" | sort -r |
    xargs -r umount -l || true
  # The kubelet bind-mounts its folder onto itself to share what it mounts there; a disk of its own has another root.
  while awk -v root="$kubelet_root" '$4 == root && $5 == root {found = 1} END {exit !found}' /proc/self/mountinfo; do
    umount -l "$kubelet_root" || break
  done
  ip link delete "$bridge" 2>/dev/null || true
  # What CNI remembers of sandboxes: ours and, named after the same container, their loopback devices.
  for cached in /var/lib/cni/results/"$bridge"-*-eth0; do
    container=${cached##*/"$bridge"-}
    rm -f "$cached" "/var/lib/cni/results/cni-loopback-${container%-eth0}-lo"
  done
  rm -rf /var/run/cdi/*
}

boot() { # the runtime and the kubelet, with what the machine kept
  local controller
  # cgroup v1 has one tree for each controller, v2 has one for all.
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "/sys/fs/cgroup/$cgroup"
  else
    for controller in /sys/fs/cgroup/*/; do mkdir -p "$controller/$cgroup" 2>/dev/null || true; done
  fi
  mkdir -p /etc/cdi /var/run/cdi /usr/local/vgpu vgpu
  if [ "$node" = "$first" ]; then
    # What daemons as pods keep there is this cluster's, and goes with it.
    mountpoint -q /usr/local/vgpu || mount --bind vgpu /usr/local/vgpu
  else
    [ -f "$home/kubelet.yaml" ] || configure
    switch_on
  fi
  start containerd
  ready containerd
  [ "$home/imported" -nt images ] || { import_images && touch "$home/imported"; }
  start proxy
  start kubelet
  ready kubelet
  ready proxy
}

ready_node() { # until pods can be on it
  wait_until "node $node Ready" kubectl wait --for=condition=Ready "node/$node" --timeout=2s
  wait_until "node $node without taints" untainted
}
untainted() { [ -z "$(kubectl get node "$node" -o 'jsonpath={.spec.taints}')" ]; }
