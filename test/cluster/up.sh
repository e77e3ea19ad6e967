#!/usr/bin/env bash
# Starts a Kubernetes cluster for tests in a folder of its own and returns when it is ready.
#
# Usage: up.sh [--mode node|api|fake] [--image NAME]... [--owner PID] FOLDER
#   --mode node   all of it, with one real node (the default; needs root). Its pods are reached by their addresses.
#   --mode api    etcd and the API server alone: for tests that need only resources. Needs no root.
#   --mode fake   a control plane without a kubelet, whose nodes the test plays. Needs no root.
#   --image NAME  an image of the Docker Engine that the node shall have; may be repeated
#   --owner PID   when this process ends, so does the cluster, whoever ended it
#   FOLDER        is made, and must not exist; its path is short, because sockets are in it. FOLDER/kubeconfig is the administrator's.
#
# Nothing of a cluster is shared with another one, or with the Docker Engine: it has ports, a bridge, networks and a control group of its
# own. The API server, the kubelet and the pods are reached at addresses of the bridge, not from other machines. down.sh FOLDER removes all of it.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too
scripts=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR
source "$scripts/lib.sh"
# shellcheck source-path=SCRIPTDIR
source "$scripts/host.sh"

mode=node images=() owner='' dir=''
while (($# > 0)); do
	case $1 in
	--mode) mode=${2:?--mode needs node, api or fake} && shift 2 ;;
	--image) images+=("${2:?--image needs a name}") && shift 2 ;;
	--owner) owner=${2:?--owner needs a process} && shift 2 ;;
	-*) die "no option $1: see the head of $0" ;;
	*) dir=$1 && shift ;;
	esac
done
case $mode in node | api | fake) ;; *) die "--mode is node, api or fake, not $mode" ;; esac
[[ $dir == /* ]] || die "the last argument is the cluster's folder, as an absolute path"
((${#dir} <= 60)) || die "$dir: the path is longer than 60 bytes, and sockets have to fit below it"
[[ $dir =~ ^[A-Za-z0-9/._-]+$ ]] || die "$dir: a path of letters, digits and ./_- is needed"
[[ ! -e $dir ]] || die "$dir exists: a cluster makes its folder"
for name in "${kubernetes_programs[@]}" etcd; do
	[[ -x $(program "$name") ]] || die "$name is missing: run $scripts/build.sh"
done
if [[ $mode == node ]]; then
	[[ $EUID -eq 0 ]] || die "a node makes networks, mounts and control groups: it needs root (mode api does not)"
	plugins=$(cni_folder) || die "the CNI plugins are missing: run $scripts/build.sh"
	[[ -x $(program pause) ]] || die "pause is missing: run $scripts/build.sh"
	for name in containerd ctr runc iptables ip conntrack; do
		command -v "$name" >/dev/null || die "$name is missing: run $scripts/build.sh"
	done
fi
for image in "${images[@]}"; do
	[[ $mode == node ]] || die "mode $mode has no node to run images on"
	docker image inspect "$image" >/dev/null 2>&1 || die "the Docker Engine has no image $image: make images"
done

# --- a number, from which come ports and names that no other cluster uses ---

# ports NUMBER: the first of the ten ports of the cluster with this number. They are below those that the kernel hands out.
ports() { printf '%s' $((21000 + 10 * $1)); }

# listens FIRST: something listens on one of the ten ports from FIRST on.
listens() {
	local pattern
	pattern=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf '|%04X' $(($1 + i)); done)
	grep -qE ":(${pattern#|}) [0-9A-F]+:0000 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

# used NUMBER: a cluster has it, or something else that this machine has is in the way of one.
used() {
	local claim=$claims/$1
	[[ -e $claim && -e $(<"$claim") ]] && return
	listens "$(ports "$1")" && return
	[[ $mode == node ]] && [[ -e /sys/class/net/sandbox$1 || -n $(ip -4 route show root "10.91.$((4 * $1)).0/22") || -n $(cgroups "$1") ]]
}

mkdir -p "$claims"
exec 9>"$claims/lock"
flock 9
number=0
while used "$number"; do
	((++number < 60)) || die "60 clusters run already (or claim to, in $claims)"
done
mkdir -m 0711 "$dir"
printf '%s' "$dir" >"$claims/$number"
first=$(ports "$number")
address=127.0.0.1 subnet=10.91.$((4 * number)).0/22 services=10.92.$number.0/24
[[ $mode != node ]] || address=10.91.$((4 * number)).1
# The bridge is not named as that of the local engine is without a configuration: a service may run beside the tests.
cat >"$dir/settings" <<X
mode=$mode number=$number address=$address subnet=$subnet service=10.92.$number.1 bridge=cluster$number cgroup=sandbox-cluster-$number
port_api=$first port_etcd=$((first + 1)) port_etcd_peer=$((first + 2)) port_controller_manager=$((first + 3)) port_scheduler=$((first + 4))
port_kubelet=$((first + 5)) port_kubelet_health=$((first + 6))
X
read_settings
trap 'say "the cluster did not come up"; exec 9>&-; "$scripts/down.sh" "$dir" || true' EXIT
mkdir "$dir"/{bin,cni,command,data,log,pid,pki,run}
for name in "${kubernetes_programs[@]}" etcd helm; do
	[[ ! -x $(program "$name") ]] || ln -s "$(program "$name")" "$dir/bin/$name"
done
if [[ $mode == node ]]; then
	keep_host
	raise_network
	raise_cgroup
fi
exec 9>&-

# --- certificates ---

key() { openssl ecparam -genkey -name prime256v1 -noout -out "$dir/pki/$1.key"; }

# certificate NAME SUBJECT [NAMES]
certificate() {
	key "$1"
	openssl req -new -key "$dir/pki/$1.key" -subj "$2" -out "$dir/pki/$1.csr"
	openssl x509 -req -in "$dir/pki/$1.csr" -CA "$dir/pki/ca.crt" -CAkey "$dir/pki/ca.key" -CAcreateserial -days 30 \
		-out "$dir/pki/$1.crt" -extfile <(printf 'subjectAltName=%s' "${3:-DNS:localhost}") 2>/dev/null
}

make_certificates() {
	key ca
	openssl req -x509 -new -key "$dir/pki/ca.key" -subj /CN=sandbox-test-cluster -days 30 -out "$dir/pki/ca.crt"
	key service-accounts
	openssl ec -in "$dir/pki/service-accounts.key" -pubout -out "$dir/pki/service-accounts.pub" 2>/dev/null
	certificate kube-apiserver /CN=kube-apiserver \
		"DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:$address,IP:$service"
	certificate administrator /O=system:masters/CN=administrator
	cat >"$dir/kubeconfig" <<-X
		apiVersion: v1
		kind: Config
		current-context: sandbox-test
		clusters: [{name: sandbox-test, cluster: {server: "https://$address:$port_api", certificate-authority: $dir/pki/ca.crt}}]
		users: [{name: administrator, user: {client-certificate: $dir/pki/administrator.crt, client-key: $dir/pki/administrator.key}}]
		contexts: [{name: sandbox-test, context: {cluster: sandbox-test, user: administrator}}]
	X
	chmod 0600 "$dir/kubeconfig" "$dir"/pki/*.key
}

# --- components ---

# component NAME PROGRAM ARGUMENT...: writes what starts it, now and after it was killed.
component() {
	printf '#!/usr/bin/env bash\nexec%s\n' "$(printf ' %q' "${@:2}")" >"$dir/command/$1"
	chmod +x "$dir/command/$1"
}

write_components() {
	component etcd "$dir/bin/etcd" --data-dir "$dir/data/etcd" --unsafe-no-fsync --log-level warn \
		--listen-client-urls "http://127.0.0.1:$port_etcd" --advertise-client-urls "http://127.0.0.1:$port_etcd" \
		--listen-peer-urls "http://127.0.0.1:$port_etcd_peer" --initial-advertise-peer-urls "http://127.0.0.1:$port_etcd_peer" \
		--initial-cluster "default=http://127.0.0.1:$port_etcd_peer"
	# shellcheck disable=SC2054 # the commas are the API server's
	local api=(--etcd-servers "http://127.0.0.1:$port_etcd" --bind-address "$address" --secure-port "$port_api"
		--tls-cert-file "$dir/pki/kube-apiserver.crt" --tls-private-key-file "$dir/pki/kube-apiserver.key" --client-ca-file "$dir/pki/ca.crt"
		--service-account-key-file "$dir/pki/service-accounts.pub" --service-account-signing-key-file "$dir/pki/service-accounts.key"
		--service-account-issuer https://kubernetes.default.svc --service-cluster-ip-range "$services"
		--authorization-mode Node,RBAC --allow-privileged --advertise-address "$address")
	case $mode in
	node)
		api+=(--kubelet-preferred-address-types InternalIP
			--kubelet-client-certificate "$dir/pki/administrator.crt" --kubelet-client-key "$dir/pki/administrator.key")
		;;
	fake) api+=(--endpoint-reconciler-type none) ;;
	# No controller makes the service accounts that pods would need.
	api) api+=(--endpoint-reconciler-type none --disable-admission-plugins ServiceAccount) ;;
	esac
	component kube-apiserver "$dir/bin/kube-apiserver" "${api[@]}"
	[[ $mode != api ]] || return 0

	local client=(--kubeconfig "$dir/kubeconfig" --authentication-kubeconfig "$dir/kubeconfig" --authorization-kubeconfig "$dir/kubeconfig"
		--bind-address 127.0.0.1 --leader-elect=false --kube-api-qps 200 --kube-api-burst 400)
	# The nodes that a test plays report once, when they are made.
	local grace=()
	[[ $mode != fake ]] || grace=(--node-monitor-grace-period 24h)
	component kube-controller-manager "$dir/bin/kube-controller-manager" "${client[@]}" --secure-port "$port_controller_manager" "${grace[@]}" \
		--flex-volume-plugin-dir "$dir/data/volume-plugins" --root-ca-file "$dir/pki/ca.crt" \
		--service-account-private-key-file "$dir/pki/service-accounts.key"
	component kube-scheduler "$dir/bin/kube-scheduler" "${client[@]}" --secure-port "$port_scheduler"
	[[ $mode == node ]] || return 0
	component containerd "$(command -v containerd)" --config "$dir/containerd.toml"
	component kubelet "$dir/bin/kubelet" --kubeconfig "$dir/kubeconfig" --config "$dir/kubelet.yaml" --root-dir "$dir/data/kubelet" \
		--cert-dir "$dir/pki/kubelet" --hostname-override node --node-ip "$address"
	write_containerd_config
	write_kubelet_config
}

write_containerd_config() {
	# Root may lack the right to lower scores of the OOM killer, and then no container would start. Network namespaces in the cluster's
	# own folder are found again when it is taken down.
	cat >"$dir/containerd.toml" <<-X
		version = 2
		root = "$dir/data/containerd"
		state = "$dir/run/containerd"
		disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
		[grpc]
		  address = "$dir/containerd.sock"
		[plugins."io.containerd.grpc.v1.cri"]
		  sandbox_image = "sandbox.internal/pause:$pause_version"
		  restrict_oom_score_adj = true
		  netns_mounts_under_state_dir = true
		  [plugins."io.containerd.grpc.v1.cri".cni]
		    bin_dir = "$plugins"
		    conf_dir = "$dir/cni"
		  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
		    runtime_type = "io.containerd.runc.v2"
		    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
		      Root = "$dir/run/runc"
	X
	# Rules for the whole subnet stand in for the rules that plugins would make and leave behind for each pod.
	cat >"$dir/cni/10-sandbox.conflist" <<-X
		{"cniVersion": "1.0.0", "name": "$bridge", "plugins": [
		  {"type": "bridge", "bridge": "$bridge", "isGateway": true, "hairpinMode": true,
		   "ipam": {"type": "host-local", "dataDir": "$dir/data/cni", "ranges": [[{"subnet": "$subnet"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
	X
}

write_kubelet_config() {
	cat >"$dir/kubelet.yaml" <<-X
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		address: $address
		port: $port_kubelet
		healthzBindAddress: 127.0.0.1
		healthzPort: $port_kubelet_health
		cgroupDriver: cgroupfs
		cgroupRoot: /$cgroup
		failCgroupV1: false
		failSwapOn: false
		makeIPTablesUtilChains: false
		containerRuntimeEndpoint: unix://$dir/containerd.sock
		podLogsDir: $dir/log/pods
		volumePluginDir: $dir/data/volume-plugins
		authentication: {anonymous: {enabled: false}, x509: {clientCAFile: $dir/pki/ca.crt}}
		authorization: {mode: Webhook}
		imageGCHighThresholdPercent: 100
		evictionHard: {nodefs.available: 1%, imagefs.available: 1%, memory.available: 50Mi}
		registryPullQPS: 0
		eventRecordQPS: 0
		kubeAPIQPS: 200
		kubeAPIBurst: 400
		nodeStatusUpdateFrequency: 5s
		maxPods: 250
	X
}

# --- images ---

# import_images brings images over from the Docker Engine, and the one that holds a pod's namespaces.
import_images() {
	local image
	mkdir -p "$dir/run/pause"
	cp "$(program pause)" "$dir/run/pause/pause"
	tar -C "$dir/run/pause" -cf "$dir/run/pause/layer.tar" pause
	printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/pause"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		"$(go env GOARCH)" "$(sha256sum "$dir/run/pause/layer.tar" | cut -d' ' -f1)" >"$dir/run/pause/config.json"
	printf '[{"Config":"config.json","RepoTags":["sandbox.internal/pause:%s"],"Layers":["layer.tar"]}]' "$pause_version" >"$dir/run/pause/manifest.json"
	tar -C "$dir/run/pause" -c manifest.json config.json layer.tar | import
	for image in "${images[@]}"; do
		docker save "$image" | import || die "image $image could not be copied from the Docker Engine"
	done
}

import() { ctr --address "$dir/containerd.sock" --namespace k8s.io images import - >/dev/null; }

# --- everything comes up ---

node_ready() { [[ $(get /api/v1/nodes | tr -d '[:space:]') == *'"type":"Ready","status":"True"'* ]]; }
account_ready() { get /api/v1/namespaces/default/serviceaccounts/default >/dev/null; }

if [[ -n $owner ]]; then
	component owner "$scripts/owner.sh" "$owner" "$dir/"
	launch owner
fi
make_certificates
write_components
launch etcd
await etcd
launch kube-apiserver
if [[ $mode == node ]]; then
	launch containerd
	await containerd
	import_images & # while the API server comes up
	importing=$!
fi
await kube-apiserver
case $mode in
node)
	for name in kube-controller-manager kube-scheduler kubelet; do launch "$name"; done
	wait "$importing"
	within "$patience" node_ready || { await kubelet && tail -n 15 "$dir/log/kubelet.log" >&2; die "the node did not become Ready"; }
	;;
fake)
	for name in kube-controller-manager kube-scheduler; do launch "$name"; done
	;;
esac
if [[ $mode != api ]]; then
	await kube-controller-manager
	await kube-scheduler
	within "$patience" account_ready || die "the namespace default got no service account (log: $dir/log/kube-controller-manager.log)"
fi
trap - EXIT
say "ready after $SECONDS s: export KUBECONFIG=$dir/kubeconfig"
