package kube_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestSandboxes runs at the same time what can be done at the same time: most of it waits for a
// node or a clock. The table of lives is what every backend has in common.
func TestSandboxes(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"Lives":         func(t *testing.T) { conformance.Run(t, onKubernetes()) },
		"Lifecycle":     testLifecycle,
		"Renewal":       testRenewal,
		"Code":          testCode,
		"NetworkPolicy": testNetworkPolicy,
		"Sleep":         testSleepWithoutController,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// onKubernetes is the cluster backend. Each service has a namespace of its own, named after its
// instance.
func onKubernetes() conformance.Backend {
	return conformance.Backend{
		Images: conformance.Images{Busybox: busyboxImage, Base: baseImage},
		Settings: func(t *testing.T, instance string, p conformance.Plan) string {
			text := settings(t, instance, p)
			control(t, instance)
			return text
		},
		Leftovers: leftovers,
		Leaks:     func(t *testing.T, instance string) []string { return remains(t, instance, "", true) },
		Clear: func(t *testing.T, instance string) {
			for _, list := range []client.Object{&v1alpha1.BatchSandbox{}, &corev1.Pod{}} {
				if err := admin.DeleteAllOf(wait.Context(t), list,
					client.InNamespace(instance)); err != nil {
					t.Error(err)
				}
			}
			if err := admin.DeleteAllOf(wait.Context(t), &corev1.Secret{},
				client.InNamespace(instance),
				client.HasLabels{"sandbox.internal/secret-of"}); err != nil {
				t.Error(err)
			}
		},
		Log: kubeletLog,
		Destroy: func(t *testing.T, instance, id string) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: instance, Name: id + "-0"}}
			if err := admin.Delete(wait.Context(t), pod,
				client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
		},
		Claim:  claim,
		Sleeps: true,
		// Execd runs on where pauses stop the processes with signals.
		PausedAnswers: true,
		// The nodes of the cluster have this one handler.
		RuntimeHandler: func(t *testing.T) string {
			class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}, Handler: "runc"}
			if err := admin.Create(t.Context(), class); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := admin.Delete(wait.Context(t), class); err != nil {
					t.Error(err)
				}
			})
			return class.Name
		},
		Unprovoked: unprovoked(),
		Instead: map[string]conformance.Replacement{
			"EventsSurviveKills": {
				Because: "a service keeps no events: after a restart a client that resumes gets reset and the current states",
				Test:    testEventsRestartAfterKills,
			},
			"ImageEntrypoint": {
				Because: "the kubelet pulls the images, so the service does not know what they have, and refuses the request",
				Test:    conformance.ImageEntrypointRefused,
			},
		},
	}
}

// unprovoked are the answers that need an API server which misbehaves.
func unprovoked() map[string]string {
	why := map[string]string{
		"getLogs 503": "the API server would have to be away",

		"streamHostLoad 200": "the sandboxes run on the nodes",

		"getNetworkPolicy 500":     "the sidecar would have to answer nonsense",
		"listNetworkDecisions 500": "the sidecar would have to answer nonsense",
		"proposeNetworkPolicy 500": "the sidecar would have to answer nonsense",
	}
	for _, operation := range []string{
		"createSandbox", "deleteSandbox", "getEndpoint", "getLogs", "getSandbox", "listSandboxes",
		"pauseSandbox", "renewExpiration",
		"resumeSandbox", "streamEvents", "streamSandboxEvents", "updateMetadata",
		"getActivity", "watchActivity",
	} {
		why[operation+
			" 500"] = "the API server would have to refuse what the service's account may do"
	}
	return why
}

// testEventsRestartAfterKills kills the service in the middle of streams and of work. A client
// that resumes gets reset if events are missing; from there on, the events lead to the state that
// each sandbox has.
func testEventsRestartAfterKills(t *testing.T, b conformance.Backend) {
	s := conformance.Start(t, b, conformance.Plan{Program: true})
	var last int64
	states, reset := map[string]string{}, false
	note := func(e conformance.StreamEvent) {
		if e.ID <= last {
			t.Errorf("event %d (%s) comes after %d", e.ID, e.Type, last)
		}
		last = e.ID
		switch e.Type {
		case "reset":
			reset = true
			clear(states)
			for _, sandbox := range s.Everything(t) {
				states[sandbox.ID] = sandbox.Status.State
			}
		case "state":
			states[conformance.Value(e.SandboxID)] = conformance.Value(e.To)
		}
	}
	for range 3 {
		events := s.StreamEvents(t, "/v1/events?after=0", "Last-Event-ID", fmt.Sprint(last))
		var creates sync.WaitGroup
		for range 3 {
			creates.Go(func() { _, _ = s.Try("POST", "/v1/sandboxes", conformance.Encode(t, s.Idle())) })
		}
		// events have begun
		events.Until(func(e conformance.StreamEvent) bool { note(e); return e.Type == "state" })
		s.Kill()
		creates.Wait()
		for _, e := range events.Rest() {
			if e.Type != "reset" { // it is unknown now
				note(e)
			}
		}
		s.Boot(t)
	}
	events := s.StreamEvents(t, "/v1/events", "Last-Event-ID", fmt.Sprint(last))
	all := s.Everything(t)
	for _, sandbox := range all {
		s.Settled(t, sandbox.ID)
	}
	// The end is marked by a change that comes after everything else.
	s.Send(t, "PATCH", "/v1/sandboxes/"+all[0].ID+"/metadata", `{"mark":"1"}`)
	events.Until(func(e conformance.StreamEvent) bool { note(e); return e.Metadata["mark"] == "1" })
	for _, sandbox := range all {
		if got := s.Get(t, sandbox.ID).Status.State; got != states[sandbox.ID] {
			t.Errorf("%s is %s, and its last event says %s", sandbox.ID, got, states[sandbox.ID])
		}
	}
	if len(all) == 0 || !reset {
		t.Errorf("%d sandboxes, a reset: %t; this proves nothing", len(all), reset)
	}
}

// kubeletLog returns the kubelet's last lines about a namespace.
func kubeletLog(namespace string) string {
	const most = 60
	if kubernetes.Directory == "" {
		return "of a cluster that these tests did not start"
	}
	text, err := os.ReadFile(filepath.Join(kubernetes.Directory, "log/kubelet.log"))
	if err != nil {
		return err.Error()
	}
	lines := slices.DeleteFunc(strings.Split(string(text), "\n"),
		func(line string) bool { return !strings.Contains(line, namespace+"/") })
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// settings makes a namespace, in which no controller works, and chooses it with the rights that the
// chart gives the service.
func settings(t *testing.T, instance string, p conformance.Plan) string {
	space(t, instance)
	kubeconfig := accounts(t, instance).Server
	return fmt.Sprintf(
		"[runtime]\ntype = \"kubernetes\"\nexecd_image = %q\n[kubernetes]\nkubeconfig_path = %q\nnamespace = %q\nprovision_timeout = %d\n",
		execdImage, kubeconfig, instance, cmp.Or(p.Provision, wait.Patience())/time.Second)
}

// leftovers are pods in which something may run, Secrets without a BatchSandbox, and BatchSandboxes
// that have not ended. A pod that has ended stays with the record, for its log, and so does the
// Secret.
func leftovers(t *testing.T, instance, id string) []string { return remains(t, instance, id, false) }

// remains returns leftovers; leaks are those alone that nothing has begun to remove. A busy node
// may need a minute to end a pod that it has just begun to start.
func remains(t *testing.T, instance, id string, leaks bool) []string {
	t.Helper()
	var left []string
	stopping := map[string]bool{} // batches
	belongs := func(object client.Object, batch string) {
		if leaks && (object.GetDeletionTimestamp() != nil || stopping[batch]) {
			return
		}
		if id == "" || id == batch {
			left = append(left, fmt.Sprintf("%T %s", object, object.GetName()))
		}
	}
	var pods corev1.PodList
	var secrets corev1.SecretList
	var batches v1alpha1.BatchSandboxList
	for _, list := range []client.ObjectList{&pods, &secrets, &batches} {
		if err := admin.List(wait.Context(t), list, client.InNamespace(instance)); err != nil {
			t.Error(err)
			return nil
		}
	}
	for _, batch := range batches.Items {
		stopping[batch.Name] = batch.Annotations[v1alpha1.AnnotationStop] != ""
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		belongs(&pod, pod.Labels[v1alpha1.LabelBatch])
	}
	records := make(map[types.UID]bool)
	for _, batch := range batches.Items {
		records[batch.UID] = true
	}
	for _, secret := range secrets.Items {
		ref := metav1.GetControllerOfNoCopy(&secret)
		switch {
		case secret.Name == v1alpha1.SecretExecutors, secret.Name == "sandbox-versions": // the namespace's
		case strings.HasPrefix(secret.Name, "mark-"): // of the console, until its time is up
		case ref == nil:
			belongs(&secret, "")
		case !records[ref.UID]:
			belongs(&secret, ref.Name)
		}
	}
	for _, batch := range batches.Items {
		if !batch.Status.Phase.Finished() {
			belongs(&batch, batch.Name)
		}
	}
	return left
}

// claim makes a directory of the node a volume, and a claim of it.
func claim(t *testing.T, s *conformance.Service) string {
	const name = "claim"
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.Instance + "-" + name,
			Labels: map[string]string{labelTest: ""}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: t.TempDir()}},
			ClaimRef: &corev1.ObjectReference{Namespace: s.Instance,
				Name: name},
		},
	}
	class := "" // this one volume, and none of a provisioner
	wanted := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Instance, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &class, VolumeName: volume.Name,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}
	for _, object := range []client.Object{volume, wanted} {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			s.DeleteAll(t)
			// A claim stays for as long as there are pods that name it, ended ones too; and a
			// volume as long as its claim.
			if err := admin.Delete(wait.Context(t), object); err != nil {
				t.Error(err)
			}
		})
	}
	return name
}
