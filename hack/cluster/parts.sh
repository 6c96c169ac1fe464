# shellcheck shell=bash
# Sourced by up, down and control: where things are, and how each part of the cluster is started, found and stopped.
#
# No pid files: every process carries CLUSTER_MARK in its environment, so that what a crash left behind is found too and
# nothing else is ever killed.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
dir=$(readlink -m "${CLUSTER_DIR:-$here/../../.cluster}")
dir_re=$(sed 's/[][\.*^$+?(){}|]/\\&/g' <<<"$dir")
bridge=hami0 network=10.243.0 nodes_bridge=hami-nodes # of pods; of nodes, whose first is the machine itself
[ "$(id -u)" = 0 ] || { echo "$(basename "$0"): please run it as root: it starts a kubelet and a container runtime" >&2; exit 1; }
mkdir -p "$dir"
cd "$dir"

declare -A program=(
  [etcd]=etcd [apiserver]=kube-apiserver [manager]=kube-controller-manager [scheduler]=kube-scheduler
  [containerd]=containerd [kubelet]=kubelet [proxy]=kube-proxy [machine]=machine
)
control_plane=(etcd apiserver manager scheduler)
node_parts=(containerd kubelet proxy)

load_settings() { # what `up` was told, for those who come later
  version= node=node-1 gates= runtime_config= api_qps= audit= kubelet_root=/var/lib/kubelet
  # shellcheck disable=SC1091
  [ ! -f settings ] || . ./settings
  bin=$dir/bin/$version first=$node
  at "$first"
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

belongs() { # PID OWNER: a node, or `control`; what has the mark alone, such as tests' daemons, is the first node's
  local entries entry mark='' owner=$first
  mapfile -d '' -t entries 2>/dev/null <"/proc/$1/environ" || return 1
  for entry in "${entries[@]}"; do
    case $entry in "CLUSTER_MARK=$dir") mark=1 ;; CLUSTER_NODE=*) owner=${entry#*=} ;; esac
  done
  [ -n "$mark" ] && [ "$owner" = "$2" ]
}
of() { # OWNER
  local pid
  for pid in $(marked); do if belongs "$pid" "$1"; then echo "$pid"; fi; done
}
owner_of() { # PART: its node, or `control`, as is the first node's proxy: by it the API server reaches services while that node is off
  case $1 in
    containerd | kubelet | machine) echo "$node" ;;
    proxy) if [ "$node" = "$first" ]; then echo control; else echo "$node"; fi ;;
    *) echo control ;;
  esac
}

pids() { # PART
  local pid owner name=${program[$1]}
  owner=$(owner_of "$1")
  for pid in $(grep -lxF "${name:0:15}" /proc/[0-9]*/comm 2>/dev/null | cut -d/ -f3); do
    if belongs "$pid" "$owner"; then echo "$pid"; fi
  done
}

contained() { # every process in a container of this node: its root is an overlay in our folder
  local home_re
  home_re=$(sed 's/[][\.*^$+?(){}|]/\\&/g' <<<"$home")
  grep -lE "^[0-9]+ [0-9]+ [0-9:]+ / / .*upperdir=$home_re/containerd/" /proc/[0-9]*/mountinfo 2>/dev/null | cut -d/ -f3 || true
}

running() { [ -n "$(pids "$1")" ]; }
stopped() { [ -z "$(pids "$1")" ]; }

stop() { # PART [SIGNAL]: and wait for it, or the next start meets its ports
  local part=$1 signal=${2:-TERM} try patience=100
  [ "$part" != apiserver ] || patience=15 # it has answered by then, and would wait a minute for who watches
  for try in $(seq "$patience"); do
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
  local part=$1 owner enter=() log=$dir/log; shift
  owner=$(owner_of "$part")
  if [ "$owner" = "$node" ]; then log=$home/log; read -ra enter <<<"$(into)"; fi
  CLUSTER_MARK=$dir CLUSTER_NODE=$owner PATH="$bin:/usr/local/sbin:/usr/sbin:/sbin:$PATH" \
    setsid nohup "${enter[@]}" "$bin/${program[$part]}" "$@" >>"$log/$part.log" 2>&1 </dev/null 9>&- &
}

healthy() { # PORT: GET /healthz says 200
  local answer
  exec 8<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf 'GET /healthz HTTP/1.0\r\n\r\n' >&8
  answer=$(timeout 3 cat <&8)
  exec 8>&-
  [[ $answer == HTTP/1.?\ 200\ * ]]
}
api_ready() { kubectl get --raw /readyz; }
runtime_ready() { timeout 3 "$bin/ctr" -a "$home/containerd.sock" version; }
kubelet_ready() { inside bash -c "$(declare -f healthy); healthy 10248"; }
proxy_ready() { inside bash -c "$(declare -f healthy); healthy 10256"; }

ready() { # PART: wait until it answers; the others have no one waiting for them
  case $1 in
    apiserver) wait_until "the API server" api_ready ;;
    containerd) wait_until "containerd" runtime_ready ;;
    kubelet) wait_until "the kubelet" kubelet_ready ;;
    proxy) wait_until "kube-proxy" proxy_ready ;;
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
      launch apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=$network.1 --advertise-address=$network.1 \
        --tls-cert-file=pki/apiserver.crt --tls-private-key-file=pki/apiserver.key --client-ca-file=pki/ca.crt \
        --service-account-key-file=pki/sa.pub --service-account-signing-key-file=pki/sa.key \
        --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range=10.96.0.0/16 \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
        --kubelet-client-certificate=pki/admin.crt --kubelet-client-key=pki/admin.key \
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
    containerd) launch containerd -c "$home/containerd.toml" ;;
    kubelet)
      launch kubelet --config="$home/kubelet.yaml" --kubeconfig="$home/pki/kubelet.kubeconfig" --hostname-override="$node" \
        --node-ip="$address" --root-dir="$kubelet_root"
      ;;
    proxy) launch proxy --config="$home/proxy.yaml" ;;
  esac
}

# shellcheck source=node.sh
. "$here/node.sh"
