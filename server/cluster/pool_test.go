package cluster_test

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster"
	"sandbox.internal/server/lifecycle"
)

// pool makes a Pool whose pods wait for a sandbox, changed as asked.
func (s *space) pool(t *testing.T, name string, change ...func(*corev1.PodTemplateSpec)) *v1alpha1.Pool {
	t.Helper()
	pool := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}}
	pool.Spec.CapacitySpec.PoolMax = 1
	pool.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "main", Image: sampleSpec().Image,
			Command: []string{"/opt/sandbox/execd-init", "await"}}},
	}}
	for _, c := range change {
		c(pool.Spec.Template)
	}
	must(t, s.api.Create(t.Context(), pool))
	return pool
}

// fromPool is a request for a sandbox of a Pool.
func fromPool(name string) lifecycle.Spec {
	spec := sampleSpec()
	spec.Resources, spec.Extensions = nil, []byte(`{"poolRef": "`+name+`"}`)
	return spec
}

// limited gives the container that waits limits, by name.
func limited(limits ...string) func(*corev1.PodTemplateSpec) {
	list := corev1.ResourceList{}
	for i := 0; i < len(limits); i += 2 {
		list[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
	}
	return func(template *corev1.PodTemplateSpec) { template.Spec.Containers[0].Resources.Limits = list }
}

// TestPool: a sandbox of a Pool is a claim, whose secrets are in a Secret.
func TestPool(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	pool := s.pool(t, "warm")
	spec := fromPool("warm")
	sandbox := create(t, c, spec)
	b := s.batch(t, sandbox.ID)
	claim := b.Spec.Claim
	if b.Spec.PoolRef != "warm" || b.Spec.Template != nil || b.Spec.TaskTemplate != nil || claim == nil ||
		claim.Container != "main" || !slices.Equal(claim.Entrypoint, spec.Entrypoint) {
		t.Fatalf("the spec is %+v, the claim %+v", b.Spec, claim)
	}
	if got, want := b.Annotations[v1alpha1.AnnotationRequires], v1alpha1.Provides(pool.Spec.Template); got != want {
		t.Errorf("the sandbox requires a pod that provides %q, and %q was compared", got, want)
	}
	s.play(t, sandbox.ID, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
	location, err := c.Locate(t.Context(), sandbox.ID, 8000)
	must(t, err)
	var secret corev1.Secret
	must(t, s.api.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: claim.Token.Name}, &secret))
	if token := string(secret.Data[claim.Token.Key]); location.Endpoint.Headers["X-EXECD-ACCESS-TOKEN"] != token || len(token) != 64 {
		t.Errorf("the endpoint is %+v", location.Endpoint)
	}
	for _, variable := range claim.Env {
		from := variable.ValueFrom
		if variable.Value != "" || from.SecretKeyRef.Name != secret.Name || string(secret.Data[from.SecretKeyRef.Key]) != spec.Env[variable.Name] {
			t.Errorf("a variable of the claim is in the resource, or is another: %+v", variable)
		}
	}
	// A change of a claimed sandbox leaves the claim, which no replica has all of, as it is.
	_, err = c.UpdateMetadata(t.Context(), sandbox.ID, map[string]*string{"team": nil})
	must(t, err)
	if after := s.batch(t, sandbox.ID).Spec.Claim; len(after.Env) != len(claim.Env) || after.Token != claim.Token {
		t.Errorf("the claim has become %+v", after)
	}
}

// TestPoolRefusals: what a pod of a Pool cannot become is refused by the name of the field.
func TestPoolRefusals(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t, func(o *cluster.Options) {
		o.RuntimeClasses = lifecycle.RuntimeClasses{{Name: "gvisor", Handler: "runsc"}}
	})
	s.pool(t, "warm")
	for says, change := range map[string]func(*lifecycle.Spec){
		"image.uri":             func(s *lifecycle.Spec) { s.Image = "other" },
		"runtimeClass":          func(s *lifecycle.Spec) { s.RuntimeClass = "gvisor" },
		"resourceLimits.cpu":    func(s *lifecycle.Spec) { s.Resources = lifecycle.ResourceLimits{"cpu": "1"} },
		"resourceLimits.memory": func(s *lifecycle.Spec) { s.Resources = lifecycle.ResourceLimits{"memory": "1Gi"} },
		"resourceLimits.gpu":    func(s *lifecycle.Spec) { s.Resources = lifecycle.ResourceLimits{"gpu": "1"} },
		"resourceRequests": func(s *lifecycle.Spec) {
			s.Resources, s.Requests = lifecycle.ResourceLimits{"cpu": "1"}, lifecycle.ResourceLimits{"cpu": "1"}
		},
		"volumes": func(s *lifecycle.Spec) {
			s.Volumes = []lifecycle.Volume{{Name: "x", ClaimName: "claim", MountPath: "/x"}}
		},
		"image.auth":    func(s *lifecycle.Spec) { s.Auth = &lifecycle.ImageAuth{Username: "a", Password: "b"} },
		"networkPolicy": func(s *lifecycle.Spec) { s.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny"} },
	} {
		changed := fromPool("warm")
		change(&changed)
		_, err := c.Create(t.Context(), changed, lifecycle.CreateOptions{})
		refuses(t, err, lifecycle.KindInvalid, says+":", "warm")
	}
	for name, tc := range map[string]struct {
		change func(*corev1.PodTemplateSpec)
		says   string
	}{
		"sleeps": {func(p *corev1.PodTemplateSpec) { p.Spec.Containers[0].Command = []string{"sleep"} }, "execd-init"},
		"again":  {func(p *corev1.PodTemplateSpec) { p.Spec.RestartPolicy = "" }, "restartPolicy"},
		"tasks": {func(p *corev1.PodTemplateSpec) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "task-executor", Image: "x"})
		}, "task-executor"},
	} {
		s.pool(t, name, tc.change)
		_, err := c.Create(t.Context(), fromPool(name), lifecycle.CreateOptions{})
		refuses(t, err, lifecycle.KindInvalid, "extensions.poolRef:", name, "do not wait for a sandbox", tc.says)
	}
	s.pool(t, "limited", limited("memory", "64Mi", "cpu", "1"))
	same := fromPool("limited")
	same.Resources = lifecycle.ResourceLimits{"memory": "64Mi", "cpu": "1000m"}
	_, err := c.Create(t.Context(), same, lifecycle.CreateOptions{})
	must(t, err)
}

// TestPoolBounds: a sandbox has the limits of its Pool where the request says nothing, and not the
// defaults of the API key; they count for the key.
func TestPoolBounds(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	s.pool(t, "warm")
	s.pool(t, "limited", limited("memory", "64Mi", "cpu", "1500m"))
	type limits = lifecycle.ResourceLimits
	bounds := lifecycle.Bounds{Section: "server.limits", Default: limits{"cpu": "1", "memory": "1Gi"}, Max: limits{"cpu": "2"}}
	for pool, want := range map[string]lifecycle.Limits{"warm": {}, "limited": {NanoCPUs: 1_500_000_000, MemoryBytes: 64 << 20}} {
		sandbox, err := c.Create(t.Context(), fromPool(pool), lifecycle.CreateOptions{Bounds: bounds})
		must(t, err)
		if claim := s.batch(t, sandbox.ID).Spec.Claim; len(claim.Limits) > 0 || sandbox.Limits != want {
			t.Errorf("%s: the sandbox has %+v, and its claim %v", pool, sandbox.Limits, claim.Limits)
		}
	}
	bounds.Max["cpu"] = "1"
	_, err := c.Create(t.Context(), fromPool("limited"), lifecycle.CreateOptions{Bounds: bounds})
	refuses(t, err, lifecycle.KindInvalid, "resourceLimits.cpu:", "1500m", "server.limits.max_cpu")
	bounds = lifecycle.Bounds{Section: "server.limits", Total: limits{"memory": "100Mi"}}
	_, err = c.Create(t.Context(), fromPool("limited"), lifecycle.CreateOptions{Bounds: bounds, Owner: "one"})
	must(t, err)
	_, err = c.Create(t.Context(), fromPool("limited"), lifecycle.CreateOptions{Bounds: bounds, Owner: "one"})
	refuses(t, err, lifecycle.KindConflict, "resourceLimits.memory:", "server.limits.total_memory")
}

// withSidecar adds an egress sidecar, and takes from the container that waits what could pass by
// it.
func withSidecar(template *corev1.PodTemplateSpec) {
	always := corev1.ContainerRestartPolicyAlways
	template.Spec.InitContainers = []corev1.Container{{Name: "egress", Image: "egress", RestartPolicy: &always}}
	template.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"NET_RAW"}}}
}

// TestPoolPolicy: a policy becomes a part of the claim where the pods have a sidecar, whose token
// is another one in each pod.
func TestPoolPolicy(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	s.pool(t, "filtered", withSidecar)
	s.pool(t, "open", withSidecar, func(p *corev1.PodTemplateSpec) { p.Spec.Containers[0].SecurityContext = nil })
	must(t, s.api.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: v1alpha1.SecretExecutors},
		Data:       map[string][]byte{v1alpha1.EntryExecutorKey: []byte("0123456789abcdef0123456789abcdef")},
	}))
	spec := fromPool("filtered")
	spec.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny"}
	tokens := make(map[string]bool)
	for _, pod := range []string{"filtered-1", "filtered-2"} {
		id := create(t, c, spec).ID
		b := s.batch(t, id)
		if claim := b.Spec.Claim; !claim.Egress || !strings.Contains(claim.NetworkPolicy, `"defaultAction":"deny"`) {
			t.Errorf("the claim is %+v", claim)
		}
		b.SetAllocation(v1alpha1.Allocation{Pods: []string{pod}})
		must(t, s.api.Update(t.Context(), b))
		s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
		awaitState(t, c, id, lifecycle.StateRunning)
		location, err := c.Locate(t.Context(), id, lifecycle.SidecarPort)
		must(t, err)
		tokens[location.Endpoint.Headers[lifecycle.SidecarTokenHeader]] = true
	}
	if len(tokens) != 2 || tokens[""] {
		t.Errorf("the tokens of the sidecars are %v", tokens)
	}
	_, err := c.Create(t.Context(), fromPool("open"), lifecycle.CreateOptions{})
	refuses(t, err, lifecycle.KindInvalid, "extensions.poolRef:", "NET_RAW", "sidecar")
}

// TestPoolLimits: limits that differ from those of a Pool become a part of the claim, where the
// cluster can give them to a pod that exists.
func TestPoolLimits(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	old := s.replica(t, behind(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.URL.Path == "/api/v1" { // what the API server has, without resizing
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","namespaced":true,"kind":"Pod","verbs":["get"]}]}`)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	s.pool(t, "limited", limited("memory", "64Mi", "cpu", "1", "nvidia.com/gpu", "1"))
	s.pool(t, "restarts", limited("memory", "64Mi"), func(p *corev1.PodTemplateSpec) {
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "memory", RestartPolicy: corev1.RestartContainer}}
	})
	asking := func(pool string, limits lifecycle.ResourceLimits) lifecycle.Spec {
		spec := fromPool(pool)
		spec.Resources = limits
		return spec
	}
	sandbox := create(t, c, asking("limited", lifecycle.ResourceLimits{"memory": "128Mi", "cpu": "1"}))
	limits := s.batch(t, sandbox.ID).Spec.Claim.Limits
	if memory := limits["memory"]; len(limits) != 1 || memory.Cmp(resource.MustParse("128Mi")) != 0 {
		t.Errorf("the claim has the limits %v", limits)
	}
	same := create(t, old, asking("limited", lifecycle.ResourceLimits{"memory": "64Mi", "cpu": "1", "gpu": "1"}))
	if limits := s.batch(t, same.ID).Spec.Claim.Limits; limits != nil {
		t.Errorf("limits that the pods have are in the claim: %v", limits)
	}
	for name, tc := range map[string]struct {
		by     *cluster.Cluster
		pool   string
		limits lifecycle.ResourceLimits
		says   []string
	}{
		"gpu":     {c, "limited", lifecycle.ResourceLimits{"gpu": "2"}, []string{"resourceLimits.gpu:", "cannot be changed"}},
		"restart": {c, "restarts", lifecycle.ResourceLimits{"memory": "1Gi"}, []string{"resourceLimits.memory:", "64Mi", "resizePolicy"}},
		"old":     {old, "limited", lifecycle.ResourceLimits{"cpu": "2"}, []string{"resourceLimits.cpu:", "does not resize pods"}},
	} {
		_, err := tc.by.Create(t.Context(), asking(tc.pool, tc.limits), lifecycle.CreateOptions{})
		t.Log(name)
		refuses(t, err, lifecycle.KindInvalid, append(tc.says, tc.pool)...)
	}
}

// TestLogOfAPool: the log of a sandbox of a Pool is that of the container that waited, all of it.
func TestLogOfAPool(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	var asked atomic.Pointer[http.Request]
	c := s.replica(t, behind(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/log") {
			asked.Store(r)
			_, _ = io.WriteString(w, "mine\n")
			return
		}
		pass.ServeHTTP(w, r)
	}))
	s.pool(t, "warm")
	id := create(t, c, fromPool("warm")).ID
	b := s.batch(t, id)
	b.SetAllocation(v1alpha1.Allocation{Pods: []string{"warm-1"}})
	must(t, s.api.Update(t.Context(), b))
	s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
	awaitState(t, c, id, lifecycle.StateRunning)
	var out bytes.Buffer
	must(t, c.Logs(t.Context(), id, lifecycle.LogOptions{}, func() io.Writer { return &out }))
	if r := asked.Load(); r.URL.Query().Get("container") != "main" || r.URL.Query().Has("sinceTime") ||
		!strings.Contains(r.URL.Path, "/warm-1/") || out.String() != "mine\n" {
		t.Errorf("asked for %s; it is %q", r.URL, &out)
	}
}
