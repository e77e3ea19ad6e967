package cluster_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/server/cluster"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestPodsAreRestricted: with a user of their own pods pass the level restricted of Pod Security,
// and baseline without.
func TestPodsAreRestricted(t *testing.T) {
	t.Parallel()
	for user, levels := range map[int64]map[string]bool{0: {"baseline": true, "restricted": false}, 1000: {"baseline": true, "restricted": true}} {
		s := newSpace(t)
		must(t, s.api.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "default"}}))
		c := s.replica(t, func(o *cluster.Options) { o.Placement.RunAsUser = user })
		template := s.batch(t, create(t, c, sampleSpec()).ID).Spec.Template
		for level, passes := range levels {
			must(t, s.api.Update(t.Context(), &corev1.Namespace{
				ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": level}},
			}))
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: level}, Spec: *template.Spec.DeepCopy()}
			var err error
			// The API server looks at labels that it has cached.
			wait.Until(t, fmt.Sprintf("that user %d passes the level %s is %t", user, level, passes), func() bool {
				err = s.api.Create(t.Context(), pod.DeepCopy(), client.DryRunAll)
				return (err == nil) == passes
			}, func() any { return err })
			if !passes && !strings.Contains(err.Error(), "violates PodSecurity") {
				t.Errorf("user %d passes the level %s: %v", user, level, err)
			}
		}
	}
}

func TestCreateMakesAPodsTemplate(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t, func(o *cluster.Options) {
		o.EgressImage, o.EgressUpstream, o.AllowedHostPaths = "sandbox/egress:dev", "192.0.2.53", []string{"/data"}
		o.Placement = cluster.Placement{
			RuntimeClass: "gvisor", PriorityClass: "sandboxes", NodeSelector: map[string]string{"pool": "sandboxes"},
			Tolerations: []cluster.Toleration{{Key: "only", Operator: "Exists"}}, EphemeralStorage: "10Gi",
		}
	})
	spec := sampleSpec()
	spec.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{{Action: "allow", Target: "example.com"}}}
	spec.Volumes = []lifecycle.Volume{
		{Name: "data", HostPath: "/data/x", MountPath: "/mnt/data", ReadOnly: true, SubPath: "sub"},
		{Name: "claim", ClaimName: "my.claim", MountPath: "/mnt/claim"},
	}
	s.claim(t, "my.claim", func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"sandbox.internal/owner": "alice"} })
	spec.Auth = &lifecycle.ImageAuth{Username: "bob", Password: "hunter2-secret"}
	before := time.Now()
	sandbox := create(t, c, spec)
	if sandbox.Status.State != lifecycle.StatePending || sandbox.ExpiresAt.Before(before.Add(time.Hour)) || sandbox.Owner != "alice" ||
		!bytes.Equal(sandbox.Extensions, spec.Extensions) || !maps.Equal(sandbox.Metadata, spec.Metadata) {
		t.Errorf("the sandbox is %+v", sandbox)
	}
	b := s.batch(t, sandbox.ID)
	pod := b.Spec.Template.Spec
	main := pod.Containers[0]
	if want := []string{"/opt/sandbox/execd-init", "--log-level=4", "--"}; !slices.Equal(main.Command, want) {
		t.Errorf("the command is %q", main.Command)
	}
	if want := []string{"sleep", "$$(HOME)", "infinity"}; !slices.Equal(main.Args, want) {
		t.Errorf("the arguments are %q", main.Args)
	}
	// What is confidential goes with the sandbox, and is nowhere else.
	var secret corev1.Secret
	must(t, s.api.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: pod.ImagePullSecrets[0].Name}, &secret))
	if owner := metav1.GetControllerOf(&secret); owner == nil || owner.UID != b.UID {
		t.Errorf("the Secret's owner is %+v", owner)
	}
	if got := string(secret.Data[corev1.DockerConfigJsonKey]); !strings.Contains(got, `"registry.example":{"password":"hunter2-secret"`) {
		t.Errorf("the Secret holds %s", got)
	}
	token, sidecarToken := hidden(t, &secret, main.Env, "EXECD_ACCESS_TOKEN"), hidden(t, &secret, pod.InitContainers[0].Env, "EGRESS_ACCESS_TOKEN")
	if len(token) != 64 || len(sidecarToken) != 64 {
		t.Errorf("the tokens are %q and %q", token, sidecarToken)
	}
	if got := hidden(t, &secret, main.Env, "GREETING"); got != "costs $5 and $(PATH)" {
		t.Errorf("the variable is %q", got)
	}
	out, err := apiServer.Kubectl(t.Context(), nil, "get", "batchsandbox", "-n", s.name, "-o", "yaml")
	must(t, err)
	for name, text := range map[string]string{"the registry's password": "hunter2", "execd's token": token, "the sidecar's token": sidecarToken, "a variable": "costs"} {
		if bytes.Contains(out, []byte(text)) {
			t.Errorf("the resource shows %s", name)
		}
	}
	if *pod.RuntimeClassName != "gvisor" || pod.PriorityClassName != "sandboxes" || pod.NodeSelector["pool"] != "sandboxes" || pod.Tolerations[0].Key != "only" {
		t.Errorf("the pod is placed by %v %q %v %v", pod.RuntimeClassName, pod.PriorityClassName, pod.NodeSelector, pod.Tolerations)
	}
	for name, want := range map[corev1.ResourceName]string{"cpu": "500m", "memory": "256Mi", "nvidia.com/gpu": "1", "ephemeral-storage": "10Gi"} {
		limit, request := main.Resources.Limits[name], main.Resources.Requests[name]
		if limit.String() != want || request.String() != want {
			t.Errorf("%s: limit %s, request %s, want %s", name, limit.String(), request.String(), want)
		}
	}
	if drop := main.SecurityContext.Capabilities.Drop; !slices.Equal(drop, []corev1.Capability{"SYS_ADMIN", "NET_ADMIN", "NET_RAW"}) {
		t.Errorf("dropped are %q", drop)
	}
	if pod.RestartPolicy != corev1.RestartPolicyNever || *pod.AutomountServiceAccountToken || *pod.EnableServiceLinks ||
		*main.SecurityContext.AllowPrivilegeEscalation || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod is not confined: %+v", pod)
	}
	sidecar := pod.InitContainers[0]
	if sidecar.Name != "egress" || *sidecar.RestartPolicy != corev1.ContainerRestartPolicyAlways || sidecar.StartupProbe == nil ||
		!slices.Equal(sidecar.SecurityContext.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}) ||
		!strings.Contains(value(sidecar.Env, "EGRESS_POLICY"), "example.com") || value(sidecar.Env, "EGRESS_UPSTREAM") != "192.0.2.53" {
		t.Errorf("the sidecar is %+v", sidecar)
	}
	if install := pod.InitContainers[1]; !slices.Equal(install.Command, []string{"/opt/sandbox/execd", "install", "/target"}) {
		t.Errorf("execd comes by %q", install.Command)
	} else {
		// Or no pod without a sidecar would be Guaranteed.
		for name, want := range map[corev1.ResourceName]string{"cpu": "500m", "memory": "256Mi", "nvidia.com/gpu": "0"} {
			limit, request := install.Resources.Limits[name], install.Resources.Requests[name]
			if limit.String() != want || request.String() != want {
				t.Errorf("execd is installed with %s: limit %s, request %s, want %s", name, limit.String(), request.String(), want)
			}
		}
	}
	if mount := main.VolumeMounts[1]; mount.MountPath != "/mnt/data" || !mount.ReadOnly || mount.SubPath != "x/sub" ||
		pod.Volumes[1].HostPath.Path != "/data" || pod.Volumes[2].PersistentVolumeClaim.ClaimName != "my.claim" {
		t.Errorf("volumes %+v, mounts %+v", pod.Volumes, main.VolumeMounts)
	}
	if *b.Spec.TTLSecondsAfterFinished != 3600 || b.Spec.ExpireTime.Time.Before(sandbox.ExpiresAt) {
		t.Errorf("retention %d, expiry %v before %v", *b.Spec.TTLSecondsAfterFinished, b.Spec.ExpireTime, sandbox.ExpiresAt)
	}
}

// hidden returns the value of a container's variable, which is in the Secret alone.
func hidden(t *testing.T, secret *corev1.Secret, env []corev1.EnvVar, name string) string {
	t.Helper()
	for _, variable := range env {
		if variable.Name != name {
			continue
		}
		if variable.Value != "" || variable.ValueFrom == nil || variable.ValueFrom.SecretKeyRef.Name != secret.Name {
			t.Errorf("%s is %+v, want an entry of Secret %s", name, variable, secret.Name)
			return ""
		}
		return string(secret.Data[variable.ValueFrom.SecretKeyRef.Key])
	}
	t.Errorf("there is no variable %s", name)
	return ""
}

func value(env []corev1.EnvVar, name string) string {
	for _, variable := range env {
		if variable.Name == name {
			return variable.Value
		}
	}
	return ""
}

// TestHostPathsOfNodes: whatever the list says, what a node is reached by is not mounted; without a
// list host paths are for administrators; and with host volumes switched off, for no key.
func TestHostPathsOfNodes(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	open := s.replica(t, func(o *cluster.Options) { o.AllowedHostPaths = nil })
	create := func(c *cluster.Cluster, path string, role lifecycle.Role) error {
		spec := sampleSpec()
		spec.Volumes = []lifecycle.Volume{{Name: "x", HostPath: path, MountPath: "/x"}}
		_, err := c.Create(t.Context(), spec, lifecycle.CreateOptions{Role: role})
		return err
	}
	for _, path := range []string{"/proc", "/sys/fs", "/run", "/run/containerd/containerd.sock", "/var/run/docker.sock", "/var", "/var/lib/kubelet/pods", "/etc/kubernetes"} {
		refuses(t, create(open, path, lifecycle.RoleAdmin), lifecycle.KindInvalid, "volumes[0].host.path", lifecycle.RuleNever)
	}
	refuses(t, create(open, "/srv", lifecycle.RoleUser), lifecycle.KindForbidden, "volumes[0].host", "storage.allowed_host_paths")
	if err := create(open, "/srv", lifecycle.RoleAdmin); err != nil {
		t.Errorf("an administrator, without a list: %v", err)
	}
	closed := s.replica(t, func(o *cluster.Options) { o.NoHostVolumes = true })
	refuses(t, create(closed, "/srv", lifecycle.RoleAdmin), lifecycle.KindInvalid, "volumes[0].host.path", "storage.host_volumes")
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t, func(o *cluster.Options) { o.AllowedHostPaths = []string{"/data"} })
	for name, tc := range map[string]struct {
		change func(*lifecycle.Spec)
		says   []string
	}{
		"policy without a sidecar": {func(s *lifecycle.Spec) { s.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny"} }, []string{"networkPolicy", "egress.image"}},
		"empty policy":             {func(s *lifecycle.Spec) { s.NetworkPolicy = &lifecycle.NetworkPolicy{} }, []string{"networkPolicy", "egress.image"}},
		"path that is not allowed": {func(s *lifecycle.Spec) {
			s.Volumes = []lifecycle.Volume{{Name: "x", HostPath: "/etc", MountPath: "/x"}}
		}, []string{"volumes[0].host.path", "storage.allowed_host_paths"}},
		"claim that no cluster has": {func(s *lifecycle.Spec) {
			s.Volumes = []lifecycle.Volume{{Name: "x", ClaimName: "My_Claim", MountPath: "/x"}}
		}, []string{"volumes[0].pvc.claimName", "My_Claim"}},
		"too much to note":   {func(s *lifecycle.Spec) { s.Extensions = []byte(`{"a":"` + strings.Repeat("x", 250<<10) + `"}`) }, []string{"extensions", "bytes"}},
		"no such pool":       {func(s *lifecycle.Spec) { s.Extensions = []byte(`{"poolRef":"none"}`) }, []string{"extensions.poolRef", `"none"`}},
		"poolRef no name":    {func(s *lifecycle.Spec) { s.Extensions = []byte(`{"poolRef":7}`) }, []string{"extensions.poolRef", "name of a Pool"}},
		"a rule of all":      {func(s *lifecycle.Spec) { s.Timeout = 0 }, []string{"timeout"}},
		"variable's no name": {func(s *lifecycle.Spec) { s.Env = map[string]string{"EXECD_X": ""} }, []string{"env.EXECD_X"}},
	} {
		spec := sampleSpec()
		tc.change(&spec)
		_, err := c.Create(t.Context(), spec, lifecycle.CreateOptions{})
		t.Run(name, func(t *testing.T) { refuses(t, err, lifecycle.KindInvalid, tc.says...) })
	}
	_, err := c.Get(t.Context(), "not-an-id")
	refuses(t, err, lifecycle.KindNotFound, "not-an-id")
	_, err = c.Get(t.Context(), "11111111-2222-4333-8444-555555555555")
	refuses(t, err, lifecycle.KindNotFound)
}

// TestRuntimeClassOfAPod: the class names the RuntimeClass, instead of the configured one for all
// pods, and decides on the sidecar.
func TestRuntimeClassOfAPod(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t, func(o *cluster.Options) {
		o.EgressImage, o.Placement = "sandbox/egress:dev", cluster.Placement{RuntimeClass: "usual"}
		o.RuntimeClasses = lifecycle.RuntimeClasses{{Name: "gvisor", Handler: "runsc"}, {Name: "kata", Handler: "kata-qemu", EgressSidecar: true}}
	})
	for class, want := range map[string]struct {
		handler string
		sidecar bool
	}{"": {"usual", true}, "gvisor": {"runsc", false}, "kata": {"kata-qemu", true}} {
		spec := sampleSpec()
		spec.RuntimeClass = class
		sandbox := create(t, c, spec)
		pod := s.batch(t, sandbox.ID).Spec.Template.Spec
		hasSidecar := slices.ContainsFunc(pod.InitContainers, func(c corev1.Container) bool { return c.Name == "egress" })
		if sandbox.RuntimeClass != class || *pod.RuntimeClassName != want.handler || hasSidecar != want.sidecar {
			t.Errorf("class %q: the sandbox has %q, its pod %q, a sidecar %t", class, sandbox.RuntimeClass, *pod.RuntimeClassName, hasSidecar)
		}
	}
	spec := sampleSpec()
	spec.RuntimeClass = "firecracker"
	_, err := c.Create(t.Context(), spec, lifecycle.CreateOptions{})
	refuses(t, err, lifecycle.KindInvalid, "runtimeClass", "firecracker", "gvisor, kata")
	spec.RuntimeClass, spec.NetworkPolicy = "gvisor", &lifecycle.NetworkPolicy{DefaultAction: "deny"}
	_, err = c.Create(t.Context(), spec, lifecycle.CreateOptions{})
	refuses(t, err, lifecycle.KindInvalid, "networkPolicy", "gvisor")
}
