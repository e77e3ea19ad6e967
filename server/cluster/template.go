package cluster

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// The containers and volumes of a sandbox's pod. Volumes of a client have other names, with a
// prefix.
const (
	containerSandbox = "sandbox"
	containerInstall = "install-execd"

	volumeDaemon       = "sandbox-execd"
	volumeEgress       = "sandbox-egress"
	volumeShared       = "sandbox-shm"
	volumeClientPrefix = "v-"
)

// resourceGPU is the resource of a device plugin that resourceLimits.gpu counts.
const resourceGPU corev1.ResourceName = "nvidia.com/gpu"

// variableSidecarToken is the variable of the egress sidecar with its token.
const variableSidecarToken = v1alpha1.EnvEgressToken

// variablePolicy is the one with the policy that it begins with.
const variablePolicy = "EGRESS_POLICY"

// egressState is where the egress sidecar keeps what must survive its container.
const egressState = "/run/egress"

// readyAttempts is how often, once a second, a container may fail its readiness or startup probe.
const readyAttempts = 60

// daemonCommand starts the daemon and behind it the entrypoint.
func daemonCommand(spec *lifecycle.Spec) []string {
	return slices.Concat([]string{lifecycle.DaemonPath + "/execd-init"}, spec.DaemonFlags(), []string{"--"})
}

// template is the pod of a sandbox with an image of its own. What is not for every reader of the
// resource goes into the secret.
func (c *Cluster) template(spec lifecycle.Spec, class lifecycle.RuntimeClass, token string, secret *secret) (*corev1.PodTemplateSpec, error) {
	resources, err := requirements(spec.Resources, spec.Requests)
	if err != nil {
		return nil, err
	}
	volumes, mounts, err := c.volumes(spec.Volumes)
	if err != nil {
		return nil, err
	}
	env := []corev1.EnvVar{secret.variable(v1alpha1.EnvExecdToken, view.EntryExecdToken, token)}
	for i, name := range sortedKeys(spec.Env) {
		env = append(env, secret.variable(name, entryVariable+strconv.Itoa(i), spec.Env[name]))
	}
	args := make([]string, len(spec.Entrypoint))
	for i, arg := range spec.Entrypoint {
		args[i] = literal(arg)
	}
	pod := corev1.PodSpec{
		RestartPolicy:                corev1.RestartPolicyNever,
		AutomountServiceAccountToken: new(bool),
		EnableServiceLinks:           new(bool),
		SecurityContext:              &corev1.PodSecurityContext{SeccompProfile: c.seccomp()},
		Volumes: append([]corev1.Volume{
			{Name: volumeDaemon, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}, volumes...),
		InitContainers: []corev1.Container{{
			Name:            containerInstall,
			Image:           c.ExecdImage,
			Command:         []string{lifecycle.DaemonPath + "/execd", "install", "/target"},
			VolumeMounts:    []corev1.VolumeMount{{Name: volumeDaemon, MountPath: "/target"}},
			Resources:       installing(resources),
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(bool), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		}},
		Containers: []corev1.Container{{
			Name:      containerSandbox,
			Image:     spec.Image,
			Command:   daemonCommand(&spec),
			Args:      args,
			Env:       env,
			Resources: resources,
			Ports:     []corev1.ContainerPort{{Name: "execd", ContainerPort: v1alpha1.PortExecd}},
			ReadinessProbe: &corev1.Probe{
				ProbeHandler:     httpGet("/ping", v1alpha1.PortExecd),
				PeriodSeconds:    1,
				TimeoutSeconds:   2,
				FailureThreshold: readyAttempts,
			},
			VolumeMounts:    append([]corev1.VolumeMount{{Name: volumeDaemon, MountPath: lifecycle.DaemonPath, ReadOnly: true}}, mounts...),
			SecurityContext: c.confinement(),
		}},
	}
	shareMemory(&pod, resources)
	if spec.Auth != nil {
		if err := secret.addCredentials(spec.Image, spec.Auth); err != nil {
			return nil, err
		}
		pod.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret.name}}
	}
	c.Placement.apply(&pod)
	if class.Handler != "" {
		pod.RuntimeClassName = &class.Handler
	}
	if err := class.CheckPolicy(spec.NetworkPolicy); err != nil {
		return nil, err
	}
	if class.EgressSidecar {
		if err := c.addSidecar(&pod, spec.NetworkPolicy, secret); err != nil {
			return nil, err
		}
	}
	return &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(c.Placement.Labels), Annotations: maps.Clone(c.Placement.Annotations)}, Spec: pod,
	}, nil
}

// shareMemory gives the sandbox of a pod with a limit of memory a /dev/shm as the other engines do.
// Without one it has that of the node's container runtime, 64 MiB.
func shareMemory(pod *corev1.PodSpec, resources corev1.ResourceRequirements) {
	memory, limited := resources.Limits[corev1.ResourceMemory]
	if !limited {
		return
	}
	size := resource.NewQuantity(lifecycle.Limits{MemoryBytes: memory.Value()}.SharedMemoryBytes(), resource.BinarySI)
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: volumeShared, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: size},
	}})
	sandbox := &pod.Containers[0]
	sandbox.VolumeMounts = append(sandbox.VolumeMounts, corev1.VolumeMount{Name: volumeShared, MountPath: "/dev/shm"})
}

// confinement is what [sandbox] says about a sandbox's container, as far as Kubernetes has it.
func (c *Cluster) confinement() *corev1.SecurityContext {
	context := &corev1.SecurityContext{}
	if c.Security.NoNewPrivileges {
		context.AllowPrivilegeEscalation = new(bool)
	}
	switch profile := c.Security.AppArmorProfile; profile {
	case "":
	case "unconfined":
		context.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	default:
		context.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &profile}
	}
	var drop []corev1.Capability
	for _, name := range c.Security.DropCapabilities {
		drop = append(drop, corev1.Capability(name))
	}
	if len(drop) > 0 {
		context.Capabilities = &corev1.Capabilities{Drop: drop}
	}
	return context
}

func (c *Cluster) seccomp() *corev1.SeccompProfile {
	if c.Security.Unconfined {
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
	}
	return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
}

// addSidecar puts the egress sidecar into the pod. It is an init container that keeps running, so
// its firewall is installed before the sandbox's own container starts; and that has neither of the
// capabilities that could change it or forge what it goes by ("Networking rules", 4).
func (c *Cluster) addSidecar(pod *corev1.PodSpec, policy *lifecycle.NetworkPolicy, secret *secret) error {
	if c.EgressImage == "" {
		if policy != nil {
			return lifecycle.Invalidf("networkPolicy: a network policy requires bridge mode and egress image configuration: egress.image is not set")
		}
		return nil
	}
	token := lifecycle.NewToken()
	variables, whole, err := c.NewSidecarClient("").Environment(lifecycle.Sidecar{Token: token, Upstream: c.EgressUpstream}, policy)
	if err != nil {
		return err
	}
	if !whole {
		return lifecycle.Invalidf("networkPolicy: is too large for a pod; it must fit into 100 KiB of JSON")
	}
	variables["EGRESS_STATE_DIR"] = egressState
	var env []corev1.EnvVar
	for _, name := range sortedKeys(variables) {
		if name == variableSidecarToken {
			env = append(env, secret.variable(name, view.EntrySidecarToken, variables[name]))
			continue
		}
		// $(NAME) would be replaced by the kubelet.
		env = append(env, corev1.EnvVar{Name: name, Value: literal(variables[name])})
	}
	// The policy that holds outlives the container: one that is started again must not fall back to
	// what the sandbox was created with.
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: volumeEgress, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	always := corev1.ContainerRestartPolicyAlways
	sidecar := corev1.Container{
		Name:          view.ContainerSidecar,
		Image:         c.EgressImage,
		RestartPolicy: &always,
		Env:           env,
		Ports:         []corev1.ContainerPort{{Name: "egress", ContainerPort: lifecycle.SidecarPort}},
		Resources:     fixed("1", "64Mi"),
		VolumeMounts:  []corev1.VolumeMount{{Name: volumeEgress, MountPath: egressState}},
		StartupProbe: &corev1.Probe{
			ProbeHandler:     httpGet("/healthz", lifecycle.SidecarPort),
			PeriodSeconds:    1,
			TimeoutSeconds:   2,
			FailureThreshold: readyAttempts,
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(bool),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
		},
	}
	pod.InitContainers = append([]corev1.Container{sidecar}, pod.InitContainers...)
	own := pod.Containers[0].SecurityContext
	if own.Capabilities == nil {
		own.Capabilities = &corev1.Capabilities{}
	}
	for _, capability := range []corev1.Capability{"NET_ADMIN", "NET_RAW"} {
		if !slices.Contains(own.Capabilities.Drop, capability) {
			own.Capabilities.Drop = append(own.Capabilities.Drop, capability)
		}
	}
	return nil
}

func httpGet(path string, port int32) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)}}
}

// fixed are resources of containers that are ours.
func fixed(cpu, memory string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
		Limits:   list,
	}
}

// installing are the resources of the container that installs execd, which runs before the
// sandbox's: what that has costs nothing more. With limits of processor and memory for both the pod
// is Guaranteed, and only then its oom_score_adj leaves room: for the kernel to end a command, and
// not execd, when the sandbox's memory is used up.
func installing(sandbox corev1.ResourceRequirements) corev1.ResourceRequirements {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit, limited := sandbox.Limits[name]
		if !limited {
			return fixed("100m", "64Mi")
		}
		requests[name], limits[name] = sandbox.Requests[name], limit
	}
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

// requirements asks for what the sandbox may use at most, and has as much reserved but for what
// requests says otherwise.
func requirements(limits, requests lifecycle.ResourceLimits) (corev1.ResourceRequirements, error) {
	most, err := quantities(limits)
	if err != nil {
		return corev1.ResourceRequirements{}, err
	}
	reserved, err := quantities(requests)
	if err != nil {
		return corev1.ResourceRequirements{}, err
	}
	for name, quantity := range most {
		if _, has := reserved[name]; !has {
			reserved[name] = quantity.DeepCopy()
		}
	}
	if len(reserved) == 0 {
		return corev1.ResourceRequirements{}, nil
	}
	return corev1.ResourceRequirements{Requests: reserved, Limits: most}, nil
}

// quantities are the cluster's of a client's.
func quantities(limits lifecycle.ResourceLimits) (corev1.ResourceList, error) {
	parsed, err := limits.Parse()
	if err != nil {
		return nil, err
	}
	if parsed.GPUs == lifecycle.AllGPUs {
		return nil, lifecycle.Invalidf("resourceLimits.gpu: must be a number on Kubernetes, where the node is not chosen yet")
	}
	list := corev1.ResourceList{}
	if parsed.NanoCPUs > 0 {
		// The kubelet counts in thousandths of a core.
		list[corev1.ResourceCPU] = *resource.NewMilliQuantity((parsed.NanoCPUs+999_999)/1_000_000, resource.DecimalSI)
	}
	if parsed.MemoryBytes > 0 {
		list[corev1.ResourceMemory] = *resource.NewQuantity(parsed.MemoryBytes, resource.BinarySI)
	}
	if parsed.GPUs > 0 {
		list[resourceGPU] = *resource.NewQuantity(int64(parsed.GPUs), resource.DecimalSI)
	}
	return list, nil
}

// ownPaths of a node are what whoever can write to them has the node by, and what holds the data of
// its pods.
var ownPaths = []string{
	"/etc/kubernetes", "/run/containerd", "/run/crio", "/run/cri-dockerd.sock", "/run/docker", "/run/docker.sock", "/run/k3s", "/run/podman",
	"/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/etcd", "/var/lib/kubelet", "/var/lib/rancher",
	"/var/run/containerd", "/var/run/crio", "/var/run/cri-dockerd.sock", "/var/run/docker", "/var/run/docker.sock", "/var/run/podman",
}

// hostPaths are the rules for paths of nodes.
func (c *Cluster) hostPaths() lifecycle.HostPaths {
	return lifecycle.HostPaths{None: c.NoHostVolumes, Allowed: c.AllowedHostPaths, Never: ownPaths}
}

// volumes are those that a client asks for, whose host paths break no rule as they are written.
// They lie on a node that is not chosen yet, where a sandbox that can write to one may have put a
// symbolic link. So only a directory that no sandbox can exchange is mounted as a host path; what
// lies below it is a sub path, whose links the kubelet follows within that directory alone.
func (c *Cluster) volumes(wanted []lifecycle.Volume) (volumes []corev1.Volume, mounts []corev1.VolumeMount, err error) {
	for i, v := range wanted {
		name := volumeName(v, i)
		source := corev1.VolumeSource{}
		switch {
		case v.HostPath != "":
			kind := corev1.HostPathDirectory
			anchor, rest := c.hostPaths().Anchor(path.Join(v.HostPath, v.SubPath))
			source.HostPath, v.SubPath = &corev1.HostPathVolumeSource{Path: anchor, Type: &kind}, rest
		case !isResourceName(v.ClaimName):
			return nil, nil, lifecycle.Invalidf("volumes[%d].pvc.claimName: %q must be at most 253 lower-case letters, digits, '-' and '.', as names of claims are on a cluster", i, v.ClaimName)
		default:
			source.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.ClaimName, ReadOnly: v.ReadOnly}
		}
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: source})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: v.MountPath, SubPath: v.SubPath, ReadOnly: v.ReadOnly})
	}
	return volumes, mounts, nil
}

// volumeName is the pod's name of a client's volume: with the prefix it may be longer than a label,
// then its number stands for it.
func volumeName(v lifecycle.Volume, i int) string {
	const longest = 63
	if name := volumeClientPrefix + v.Name; len(name) <= longest {
		return name
	}
	return fmt.Sprintf("volume-%d", i)
}

// literal keeps the kubelet from replacing $(NAME).
func literal(text string) string { return strings.ReplaceAll(text, "$", "$$") }

var resourceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

// isResourceName reports whether the API server takes the text as a name (RFC 1123, subdomain).
func isResourceName(text string) bool { return len(text) <= 253 && resourceName.MatchString(text) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
