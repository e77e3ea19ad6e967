package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster"
	"sandbox.internal/server/cluster/view"
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

func TestLife(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c, other := s.replica(t), s.replica(t)
	id := create(t, c, sampleSpec()).ID
	// Another replica returns it at once, and lists it soon.
	if got, err := other.Get(t.Context(), id); err != nil || got.ID != id {
		t.Fatalf("the other replica: %+v, %v", got, err)
	}
	refuses(t, c.Pause(t.Context(), id), lifecycle.KindConflict, "Pending", "Running")
	waited := make(chan error, 1)
	go func() {
		_, err := other.Locate(t.Context(), id, 80)
		waited <- err
	}()
	s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
	must(t, <-waited)
	sandbox := awaitState(t, c, id, lifecycle.StateRunning)
	if _, ok := sandbox.Reached(lifecycle.StageReady); !ok || sandbox.Status.Reason != lifecycle.ReasonContainerRunning {
		t.Errorf("running, it is %+v", sandbox)
	}
	location, err := c.Locate(t.Context(), id, 8000)
	endpoint := location.Endpoint
	if must(t, err); endpoint.Host != "192.0.2.7" || endpoint.Port != 44772 || endpoint.Path != "/proxy/8000" {
		t.Errorf("the endpoint is %+v", endpoint)
	}
	if location.Daemon != "192.0.2.7:44772" || location.Token == "" || location.Token != endpoint.Headers["X-EXECD-ACCESS-TOKEN"] {
		t.Errorf("reached at %q with %q", location.Daemon, location.Token)
	}
	refuses(t, c.Resume(t.Context(), id), lifecycle.KindConflict, "Running", "Paused")

	awaitState(t, other, id, lifecycle.StateRunning)
	must(t, other.Pause(t.Context(), id))
	if got, _ := other.Get(t.Context(), id); got.Status.State != lifecycle.StatePausing || !s.batch(t, id).Spec.Pause {
		t.Errorf("after the pause it is %+v", got.Status)
	}
	// What the read model drops of a resource, a change does not take away.
	if template := s.batch(t, id).Spec.Template; template == nil || len(template.Spec.Containers) != 1 || template.Spec.Containers[0].Image != sampleSpec().Image {
		t.Errorf("after the pause its pod is %+v", template)
	}
	s.play(t, id, v1alpha1.PhasePaused, v1alpha1.ReasonUserPause, "frozen")
	awaitState(t, c, id, lifecycle.StatePaused)
	must(t, c.Resume(t.Context(), id))
	if got, _ := c.Get(t.Context(), id); got.Status.State != lifecycle.StateResuming {
		t.Errorf("after the resume it is %+v", got.Status)
	}
	s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonUserResume, "thawed")
	awaitState(t, c, id, lifecycle.StateRunning)

	// The expiry keeps its fraction of a second, and the resource never ends before it.
	later := time.Now().Add(3 * time.Hour).UTC()
	got, err := c.Renew(t.Context(), id, later)
	if must(t, err); !got.Equal(later) || s.batch(t, id).Spec.ExpireTime.Time.Before(later) {
		t.Errorf("renewed to %v, the resource says %v", got, s.batch(t, id).Spec.ExpireTime)
	}
	if now, _ := c.Get(t.Context(), id); !now.ExpiresAt.Equal(later) {
		t.Errorf("the expiry is %v", now.ExpiresAt)
	}
	_, err = c.Renew(t.Context(), id, later.Add(-time.Minute))
	refuses(t, err, lifecycle.KindInvalid, "later than the current expiry")

	blue := "blue"
	merged, err := c.UpdateMetadata(t.Context(), id, map[string]*string{"team": &blue, "schlüssel": nil})
	if must(t, err); !maps.Equal(merged, map[string]string{"team": "blue"}) {
		t.Errorf("the metadata is %v", merged)
	}
	// The other replica changes what it has not seen yet, and nothing is lost.
	merged, err = other.UpdateMetadata(t.Context(), id, map[string]*string{"more": &blue})
	if must(t, err); !maps.Equal(merged, map[string]string{"team": "blue", "more": "blue"}) {
		t.Errorf("the metadata is %v", merged)
	}

	must(t, other.Delete(t.Context(), id))
	if got, _ := other.Get(t.Context(), id); got.Status.State != lifecycle.StateStopping || got.Status.Reason != lifecycle.ReasonUserDelete {
		t.Errorf("after the delete it is %+v", got.Status)
	}
	must(t, c.Delete(t.Context(), id)) // no error, wherever it is asked
	s.play(t, id, v1alpha1.PhaseTerminated, v1alpha1.ReasonUserDelete, "removed")
	settled, err := c.AwaitStable(t.Context(), id, wait.Patience())
	if must(t, err); settled.Status.State != lifecycle.StateTerminated {
		t.Errorf("settled, it is %+v", settled.Status)
	}
	refuses(t, c.Delete(t.Context(), id), lifecycle.KindConflict, "Terminated")
	refuses(t, c.Logs(t.Context(), id, lifecycle.LogOptions{}, nil), lifecycle.KindConflict, "lost")
	_, err = c.Locate(t.Context(), id, 80)
	refuses(t, err, lifecycle.KindConflict, "Terminated")
	s.remove(t, id) // its retention is over
	wait.Until(t, "it is forgotten", func() bool {
		_, err := c.Get(t.Context(), id)
		var known *lifecycle.Error
		return errors.As(err, &known) && known.Kind == lifecycle.KindNotFound
	})
}

func TestIdempotencyKeysAtTwoReplicas(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	replicas := []*cluster.Cluster{s.replica(t), s.replica(t)}
	spec := sampleSpec()
	spec.Auth = &lifecycle.ImageAuth{Username: "a", Password: "b"}
	ids := make([]string, 8)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			sandbox, err := replicas[i%2].Create(t.Context(), spec, lifecycle.CreateOptions{Owner: "alice", IdempotencyKey: "k"})
			if err != nil {
				t.Error(err)
			}
			ids[i] = sandbox.ID
		})
	}
	all.Wait()
	if slices.Sort(ids); len(slices.Compact(ids)) != 1 {
		t.Errorf("one key made %q", ids)
	}
	spec.Timeout += time.Second
	_, err := replicas[0].Create(t.Context(), spec, lifecycle.CreateOptions{Owner: "alice", IdempotencyKey: "k"})
	refuses(t, err, lifecycle.KindConflict, "Idempotency-Key", "another request body")
	again, err := replicas[0].Create(t.Context(), spec, lifecycle.CreateOptions{Owner: "bob", IdempotencyKey: "k"})
	if must(t, err); again.ID == ids[0] {
		t.Error("two owners share a key")
	}
}

// TestCreateOutlivesItsRequest: a client that leaves while its sandbox is written leaves no Secret
// without a sandbox.
func TestCreateOutlivesItsRequest(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	ctx, leave := context.WithCancel(t.Context())
	created, err := s.replica(t).Create(ctx, sampleSpec(), lifecycle.CreateOptions{
		Took: func(stage string, _ time.Duration) {
			if stage == "validate" { // next it is written
				leave()
			}
		},
	})
	must(t, err)
	b := s.batch(t, created.ID)
	var secret corev1.Secret
	must(t, s.api.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: b.Annotations[view.AnnotationSecret]}, &secret))
	if !metav1.IsControlledBy(&secret, b) {
		t.Errorf("the Secret belongs to %v", secret.OwnerReferences)
	}
}

func TestListing(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	var ids []string
	for range 5 {
		ids = append([]string{create(t, c, sampleSpec()).ID}, ids...)
	}
	// A batch that was applied by another client is no sandbox of the service.
	must(t, s.api.Create(t.Context(), &v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "by-hand"},
		Spec: v1alpha1.BatchSandboxSpec{Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}}}))
	listing, err := c.List(t.Context(), lifecycle.Filter{}, lifecycle.Page{Number: 2, Size: 2})
	must(t, err)
	if listing.Total != 5 || len(listing.Items) != 2 || listing.Items[0].ID != ids[2] || listing.Items[1].ID != ids[3] {
		t.Errorf("page 2 of %q is %+v", ids, listing)
	}
	fresh := s.replica(t) // it lists what was there before it
	owner := "bob"
	for name, tc := range map[string]struct {
		filter lifecycle.Filter
		want   int
	}{
		"all": {lifecycle.Filter{}, 5}, "metadata": {lifecycle.Filter{Metadata: map[string]string{"team": "red"}}, 5},
		"other metadata": {lifecycle.Filter{Metadata: map[string]string{"team": "blue"}}, 0},
		"state":          {lifecycle.Filter{States: []lifecycle.State{lifecycle.StateRunning}}, 0}, "owner": {lifecycle.Filter{Owner: &owner}, 0},
	} {
		if got, err := fresh.List(t.Context(), tc.filter, lifecycle.Page{Number: 1, Size: 1}); err != nil || got.Total != tc.want {
			t.Errorf("%s: %d, %v, want %d", name, got.Total, err, tc.want)
		}
	}
	if count := fresh.Count(); count[lifecycle.StatePending] != 5 {
		t.Errorf("counted are %v", count)
	}
}

// TestEventsAreTheSameEverywhere: what one replica reported goes on at another, without a gap or a
// repetition.
func TestEventsAreTheSameEverywhere(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	one, two := s.replica(t), s.replica(t)
	id := create(t, one, sampleSpec()).ID
	s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
	awaitState(t, one, id, lifecycle.StateRunning)
	blue := "blue"
	_, err := one.UpdateMetadata(t.Context(), id, map[string]*string{"team": &blue})
	must(t, err)
	must(t, one.Delete(t.Context(), id))
	s.play(t, id, v1alpha1.PhaseTerminated, v1alpha1.ReasonUserDelete, "removed")
	awaitState(t, two, id, lifecycle.StateTerminated)
	s.remove(t, id)

	zero := int64(0)
	read := func(c *cluster.Cluster, after *int64) (events []lifecycle.Event) {
		t.Helper()
		feed, err := c.Events(t.Context(), lifecycle.EventSelection{After: after})
		must(t, err)
		defer feed.Close()
		ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
		defer cancel()
		for {
			batch, err := feed.Next(ctx)
			if must(t, err); batch.Reset {
				t.Fatal("a reset")
			}
			events = append(events, batch.Events...)
			if n := len(events); n > 0 && events[n-1].Type == lifecycle.EventForgotten {
				return events
			}
		}
	}
	sent := read(one, &zero)
	var what []string
	for _, event := range sent {
		what = append(what, strings.Trim(string(event.Type)+" "+string(event.To)+string(event.Stage), " "))
	}
	want := []string{"state Pending", "stage accepted", "stage ready", "state Running", "metadata", "state Stopping", "state Terminated", "forgotten"}
	if !slices.Equal(what, want) {
		t.Errorf("the events are %q, want %q", what, want)
	}
	for i := range sent {
		rest := read(two, &sent[i].Sequence)
		if i == len(sent)-1 {
			break
		}
		if len(rest) != len(sent)-1-i || rest[0].Sequence != sent[i+1].Sequence || rest[0].Type != sent[i+1].Type {
			t.Errorf("after event %d (%s) the other replica has %d events", i, what[i], len(rest))
		}
		if i == len(sent)-2 {
			break
		}
	}
	// A replica that begins later has no events from before, and says so.
	late := s.replica(t)
	feed, err := late.Events(t.Context(), lifecycle.EventSelection{After: &sent[0].Sequence})
	must(t, err)
	defer feed.Close()
	if batch, err := feed.Next(t.Context()); err != nil || !batch.Reset || batch.Cursor <= sent[0].Sequence {
		t.Errorf("the late replica: %+v, %v", batch, err)
	}
	// A number from elsewhere is unknown everywhere.
	future := sent[0].Sequence << 20
	feed, err = one.Events(t.Context(), lifecycle.EventSelection{After: &future})
	must(t, err)
	defer feed.Close()
	if batch, err := feed.Next(t.Context()); err != nil || !batch.Reset {
		t.Errorf("a sequence that was never sent: %+v, %v", batch, err)
	}
}

func TestEventsOfOneSandboxEnd(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	id := create(t, c, sampleSpec()).ID
	create(t, c, sampleSpec())
	feed, err := c.Events(t.Context(), lifecycle.EventSelection{SandboxID: id})
	must(t, err)
	defer feed.Close()
	s.remove(t, id)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	var last lifecycle.Event
	for {
		batch, err := feed.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		for _, last = range batch.Events {
			if last.SandboxID != id {
				t.Errorf("an event of another sandbox: %+v", last)
			}
		}
	}
	if last.Type != lifecycle.EventForgotten {
		t.Errorf("the last event is %+v", last)
	}
	_, err = c.Events(t.Context(), lifecycle.EventSelection{SandboxID: id})
	refuses(t, err, lifecycle.KindNotFound)
}

// routes is an ingress's table.
type routes struct {
	mu  sync.Mutex
	all map[string]view.Route
}

func (r *routes) Replace(all []view.Route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = make(map[string]view.Route)
	for _, route := range all {
		r.all[route.ID] = route
	}
}

func (r *routes) Update(route view.Route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[route.ID] = route
}

func (r *routes) Forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, id)
}

func (r *routes) get(id string) (view.Route, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	route, ok := r.all[id]
	return route, ok
}

func TestRoutesOfAnIngress(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	before := create(t, c, sampleSpec()).ID
	// One whose record the service would keep for less time than the resource says: with an
	// administrator's rights, too, an ingress only reads.
	failed := create(t, c, sampleSpec()).ID
	c.Close()
	s.play(t, failed, v1alpha1.PhaseFailed, v1alpha1.ReasonImagePullError, "no such image")
	unchanged := s.batch(t, failed).ResourceVersion
	var table routes
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- view.FollowRoutes(ctx, view.RouteOptions{Kubeconfig: apiServer.Kubeconfig, Namespace: s.name, Logger: zerolog.New(logOf{t})}, &table)
	}()
	wait.Until(t, "the sandbox has a row", func() bool { _, ok := table.get(before); return ok })
	c = s.replica(t, func(o *cluster.Options) { o.PendingFailureTTL = o.TerminatedRetention })
	after := create(t, c, sampleSpec()).ID
	s.play(t, after, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
	wait.Until(t, "the new one has a route", func() bool {
		route, _ := table.get(after)
		return route.State == lifecycle.StateRunning && route.Address == "192.0.2.7:44772"
	})
	if location, err := c.Locate(t.Context(), after, 80); err != nil {
		t.Error(err)
	} else if route, _ := table.get(after); route.Token != location.Token {
		t.Error("the route has another token than the service")
	}
	s.remove(t, after)
	wait.Until(t, "it is forgotten", func() bool { _, ok := table.get(after); return !ok })
	stop()
	must(t, <-done)
	if version := s.batch(t, failed).ResourceVersion; version != unchanged {
		t.Error("the ingress has written to a BatchSandbox")
	}
	if err := view.FollowRoutes(t.Context(), view.RouteOptions{Kubeconfig: "/no/such/file"}, &table); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("without a configuration: %v", err)
	}
}
