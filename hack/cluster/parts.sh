# shellcheck shell=bash
# Sourced by up, down and control: where things are, and how each part of the cluster is started, found and stopped.
#
# No pid files: every process carries CLUSTER_MARK in its environment, so that what a crash left behind is found too and
# nothing else is ever killed.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
dir=$(readlink -m "${CLUSTER_DIR:-$here/../../.cluster}")
dir_re=$(sed 's/[][\.*^$+?(){}|]/\\&/g' <<<"$dir")
bridge=hami0
[ "$(id -u)" = 0 ] || { echo "$(basename "$0"): please run it as root: it starts a kubelet and a container runtime" >&2; exit 1; }
mkdir -p "$dir"
cd "$dir"

declare -A program=(
  [etcd]=etcd [apiserver]=kube-apiserver [manager]=kube-controller-manager [scheduler]=kube-scheduler
  [containerd]=containerd [kubelet]=kubelet
)

load_settings() { # what `up` was told, for those who come later
  version= node=node-1 gates= runtime_config= api_qps= audit= kubelet_root=/var/lib/kubelet
  # shellcheck disable=SC1091
  [ ! -f settings ] || . ./settings
  bin=$dir/bin/$version
}

mark_file=.hami-cluster # in the kubelet's folder: the CLUSTER_DIR whose it is
other_owner() { # print the CLUSTER_DIR of another cluster, not wiped yet, that keeps its state in $kubelet_root
  local owner
  owner=$(cat "$kubelet_root/$mark_file" 2>/dev/null) || return 0
  [ -z "$owner" ] || [ "$owner" = "$dir" ] || [ ! -f "$owner/settings" ] || echo "$owner"
}
refuse_other() { # PROGRAM OWNER
  echo "$1: $kubelet_root belongs to the cluster of $2, not to that of $dir; it stays as it is." >&2
  echo "$1: to be rid of that one: CLUSTER_DIR=$2 $here/down --wipe" >&2
  exit 1
}

kubectl() { "$bin/kubectl" --kubeconfig "$dir/kubeconfig" --request-timeout=5s "$@"; }

wait_until() { # WHAT COMMAND...: poll for up to a minute
  local what=$1 end=$((SECONDS + 60)); shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { echo "$what: not within 60 s; see $dir/log" >&2; return 1; }
    sleep 0.1
  done
}

# --- finding and ending processes -----------------------------------------------------------------------------------

marked() { # every process of this cluster outside of containers; containerd's shims and their runc inherit the mark
  grep -lzxF "CLUSTER_MARK=$dir" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true
}

pids() { # PART
  local pid name=${program[$1]}
  for pid in $(marked); do [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != "${name:0:15}" ] || echo "$pid"; done
}

contained() { # every process in a container of this cluster: its root is an overlay in our folder
  grep -lE "^[0-9]+ [0-9]+ [0-9:]+ / / .*upperdir=$dir_re/" /proc/[0-9]*/mountinfo 2>/dev/null | cut -d/ -f3 || true
}

running() { [ -n "$(pids "$1")" ]; }
stopped() { [ -z "$(pids "$1")" ]; }

stop() { # PART [SIGNAL]: and wait for it, or the next start meets its ports
  local part=$1 signal=${2:-TERM} try
  for try in $(seq 100); do
    stopped "$part" && return
    # shellcheck disable=SC2046
    [ "$try" != 1 ] || kill "-$signal" $(pids "$part") 2>/dev/null || true
    sleep 0.1
  done
  # shellcheck disable=SC2046
  kill -KILL $(pids "$part") 2>/dev/null || true
  wait_until "the end of $part" stopped "$part"
}

# --- starting -------------------------------------------------------------------------------------------------------

launch() { # PART ARGUMENT...
  local part=$1; shift
  CLUSTER_MARK=$dir PATH="$bin:/usr/local/sbin:/usr/sbin:/sbin:$PATH" \
    setsid nohup "$bin/${program[$part]}" "$@" >>"log/$part.log" 2>&1 </dev/null 9>&- &
}

healthy() { # PORT: GET /healthz says ok
  local answer
  exec 8<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf 'GET /healthz HTTP/1.0\r\n\r\n' >&8
  answer=$(timeout 3 cat <&8)
  exec 8>&-
  [[ $answer == *ok ]]
}
api_ready() { kubectl get --raw /readyz; }
runtime_ready() { timeout 3 "$bin/ctr" -a "$dir/containerd.sock" version; }
kubelet_ready() { (healthy 10248); }

ready() { # PART: wait until it answers; the others have no one waiting for them
  case $1 in
    apiserver) wait_until "the API server" api_ready ;;
    containerd) wait_until "containerd" runtime_ready ;;
    kubelet) wait_until "the kubelet" kubelet_ready ;;
    *) wait_until "$1" running "$1" ;;
  esac
}

start() { # PART
  local flags=() rates=()
  running "$1" && return
  [ -z "$api_qps" ] || rates=(--kube-api-qps="$api_qps" --kube-api-burst="$((2 * api_qps))")
  [ -z "$gates" ] || flags+=(--feature-gates="$gates")
  case $1 in
    etcd)
      # --unsafe-no-fsync: survives every process's death, not the machine's.
      launch etcd --data-dir "$dir/etcd" --listen-client-urls http://127.0.0.1:2379 --unsafe-no-fsync \
        --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
      ;;
    apiserver)
      [ -z "$runtime_config" ] || flags+=(--runtime-config="$runtime_config")
      [ -z "$audit" ] || flags+=(--audit-policy-file=audit.yaml --audit-log-path=log/audit.log)
      # How it shows itself to webhooks, for example; a test may write it, and restart the API server.
      [ ! -f admission.yaml ] || flags+=(--admission-control-config-file=admission.yaml)
      launch apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=127.0.0.1 --advertise-address=127.0.0.1 \
        --tls-cert-file=pki/apiserver.crt --tls-private-key-file=pki/apiserver.key --client-ca-file=pki/ca.crt \
        --service-account-key-file=pki/sa.pub --service-account-signing-key-file=pki/sa.key \
        --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range=10.96.0.0/16 \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
        --endpoint-reconciler-type=none --kubelet-client-certificate=pki/admin.crt --kubelet-client-key=pki/admin.key \
        --kubelet-certificate-authority=pki/ca.crt --kubelet-preferred-address-types=InternalIP "${flags[@]}"
      ;;
    manager)
      launch manager --kubeconfig=pki/manager.kubeconfig --authentication-kubeconfig=pki/manager.kubeconfig \
        --authorization-kubeconfig=pki/manager.kubeconfig --service-account-private-key-file=pki/sa.key \
        --root-ca-file=pki/ca.crt --use-service-account-credentials --leader-elect=false --bind-address=127.0.0.1 "${flags[@]}" "${rates[@]}"
      ;;
    scheduler)
      launch scheduler --kubeconfig=pki/scheduler.kubeconfig --authentication-kubeconfig=pki/scheduler.kubeconfig \
        --authorization-kubeconfig=pki/scheduler.kubeconfig --leader-elect=false --bind-address=127.0.0.1 "${flags[@]}" "${rates[@]}"
      ;;
    containerd) launch containerd -c containerd.toml ;;
    kubelet)
      launch kubelet --config=kubelet.yaml --kubeconfig=pki/kubelet.kubeconfig --hostname-override="$node" --root-dir="$kubelet_root"
      ;;
  esac
}

# --- the node, as a machine -----------------------------------------------------------------------------------------

halt() { # stop the node; what is left is what a machine keeps over a reboot
  local victims try cached container
  stop kubelet
  stop containerd
  for try in $(seq 100); do
    victims=$({ contained; for part in etcd apiserver manager scheduler; do pids $part; done | sed 's/^/not /'; marked; } |
      awk '$1 == "not" {spare[$2]; next} {seen[$1]} END {for (pid in seen) if (!(pid in spare)) print pid}')
    [ -n "$victims" ] || break
    # shellcheck disable=SC2086
    kill -KILL $victims 2>/dev/null || true
    sleep 0.05
  done
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
  rm -rf containerd/state containerd.sock containerd.sock.ttrpc cni/leases /var/run/cdi/*
  # Cgroups of killed containers, deepest first; those in use stay, as rmdir refuses them.
  find /sys/fs/cgroup -depth -type d -path '*/hami-cluster*' -exec rmdir {} \; 2>/dev/null || true
}

boot() { # the runtime and the kubelet, with what the machine kept
  local controller
  # cgroup v1 has one tree for each controller, v2 has one for all.
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p /sys/fs/cgroup/hami-cluster
  else
    for controller in /sys/fs/cgroup/*/; do mkdir -p "$controller/hami-cluster" 2>/dev/null || true; done
  fi
  mkdir -p /etc/cdi /var/run/cdi
  start containerd
  ready containerd
  start kubelet
  ready kubelet
}
