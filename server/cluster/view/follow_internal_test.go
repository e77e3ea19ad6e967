package view

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const id = "11111111-2222-4333-8444-555555555555"

// resource is the sandbox's at a version.
func resource(version, metadata string) *v1alpha1.BatchSandbox {
	return &v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{
		Name: id, UID: "u", ResourceVersion: version, Labels: map[string]string{LabelManagedBy: ManagedBy},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		Annotations:   map[string]string{AnnotationRecord: `{"image":"i","createdAt":"2026-01-01T00:00:00Z"}`, AnnotationMetadata: metadata},
	}, Spec: v1alpha1.BatchSandboxSpec{Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: ContainerSidecar, Image: "sidecar"}}, Containers: []corev1.Container{{Name: "sandbox", Image: "i"}},
	}}}}
}

// scripted is an API server whose answers the test gives, one for each request.
type scripted struct {
	Reader
	lists   chan answer
	watches chan answer
	asked   chan metav1.ListOptions
}

type answer struct {
	version string
	items   []*v1alpha1.BatchSandbox
	watcher watch.Interface
	err     error
}

func newScripted() *scripted {
	return &scripted{lists: make(chan answer), watches: make(chan answer), asked: make(chan metav1.ListOptions, 100)}
}

func next(ctx context.Context, answers chan answer) (answer, error) {
	select {
	case a := <-answers:
		return a, a.err
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

func (s *scripted) ask(options []client.ListOption) {
	var all client.ListOptions
	s.asked <- *all.ApplyOptions(options).AsListOptions()
}

func (s *scripted) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	s.ask(options)
	a, err := next(ctx, s.lists)
	if err != nil {
		return err
	}
	into := list.(*v1alpha1.BatchSandboxList)
	into.ResourceVersion = a.version
	for _, item := range a.items {
		into.Items = append(into.Items, *item)
	}
	return nil
}

func (s *scripted) Watch(ctx context.Context, _ client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
	s.ask(options)
	a, err := next(ctx, s.watches)
	return a.watcher, err
}

// start returns a View that has started with the list, and what was asked for it.
func start(t *testing.T, s *scripted, first answer) (*View, error) {
	t.Helper()
	v := New(Options{
		API: s, Namespace: "n", Changed: func(*Entry, []lifecycle.Event, bool) {}, Clock: time.Now, Logger: zerolog.New(zerolog.NewTestWriter(t)),
	})
	t.Cleanup(v.Close)
	done := make(chan error, 1)
	go func() { done <- v.Start(t.Context()) }()
	give(t, s.lists, first)
	return v, wait.For(t, "the start of the view", done)
}

func give(t *testing.T, answers chan answer, a answer) {
	t.Helper()
	select {
	case answers <- a:
	case <-time.After(wait.Patience()):
		t.Fatal("nothing is asked")
	}
}

// TestWatchGoesOnWhereItStopped: only a version that the API server does not have any more makes
// feeds of events begin again.
func TestWatchGoesOnWhereItStopped(t *testing.T) {
	s := newScripted()
	v, err := start(t, s, answer{version: "10", items: []*v1alpha1.BatchSandbox{resource("9", `{"n":"0"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	if asked := wait.For(t, "a list", s.asked); asked.ResourceVersion != "" || asked.Limit != pageSize || asked.LabelSelector != LabelManagedBy+"="+ManagedBy {
		t.Errorf("the list is asked for with %+v", asked)
	}
	feed, err := v.Events(t.Context(), lifecycle.EventSelection{})
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	read := func() lifecycle.EventBatch {
		t.Helper()
		for {
			batch, err := feed.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if batch.Reset || len(batch.Events) > 0 {
				return batch
			}
		}
	}
	// begin answers a watch from a version; failures come before.
	begin := func(version string, failures ...error) *watch.FakeWatcher {
		t.Helper()
		watcher := watch.NewFake()
		for i := range len(failures) + 1 {
			a := answer{watcher: watcher}
			if i < len(failures) {
				a = answer{err: failures[i]}
			}
			give(t, s.watches, a)
			if asked := <-s.asked; asked.ResourceVersion != version || !asked.AllowWatchBookmarks || asked.TimeoutSeconds == nil {
				t.Errorf("a watch is asked for with %+v, want version %s", asked, version)
			}
		}
		return watcher
	}
	changed := func(watcher *watch.FakeWatcher, version, value string) {
		t.Helper()
		watcher.Modify(resource(version, `{"n":"`+value+`"}`))
		if batch := read(); batch.Reset || len(batch.Events) != 1 || batch.Events[0].Metadata["n"] != value {
			t.Errorf("after version %s the feed has %+v", version, batch)
		}
	}
	watcher := begin("10")
	changed(watcher, "12", "1")
	watcher.Action(watch.Bookmark, resource("15", ""))
	watcher.Stop() // its time is up
	watcher = begin("15", apierrors.NewServiceUnavailable("rolling out"), errors.New("no route to host"), apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("batchsandboxes").GroupResource(), "", nil))
	changed(watcher, "21", "2")
	watcher.Error(statusOf(apierrors.NewInternalError(errors.New("unable to decode an event from the watch stream: http2: client connection lost"))))
	watcher = begin("21")
	changed(watcher, "22", "3")

	watcher.Error(statusOf(apierrors.NewResourceExpired("too old resource version")))
	give(t, s.lists, answer{version: "40"})
	if batch := read(); !batch.Reset {
		t.Errorf("after a gap the feed has %+v", batch)
	}
	if all := v.All(); len(all) != 0 {
		t.Errorf("a sandbox that is not listed any more stays: %+v", all)
	}
	if asked := wait.For(t, "a list", s.asked); asked.ResourceVersion != "" || asked.Limit != pageSize {
		t.Errorf("the list is asked for again with %+v", asked)
	}
	begin("40")
}

func statusOf(err *apierrors.StatusError) runtime.Object { return &err.ErrStatus }

func TestStartFailsWithTheFirstList(t *testing.T) {
	for want, refusal := range map[string]error{
		"is forbidden":     apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("batchsandboxes").GroupResource(), "", errors.New("no")),
		"could not find":   apierrors.NewGenericServerResponse(http.StatusNotFound, "list", v1alpha1.GroupVersion.WithResource("batchsandboxes").GroupResource(), "", "", 0, true),
		"no route to host": errors.New("no route to host"),
	} {
		_, err := start(t, newScripted(), answer{err: refusal})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "namespace n") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestTrimmed: what is kept of a resource has no pod, and a change that is made from it leaves the
// pod as it is.
func TestTrimmed(t *testing.T) {
	full := resource("1", `{}`)
	full.Spec.TaskTemplate = &v1alpha1.TaskTemplate{Command: []string{"x"}}
	full.Status.Conditions = []metav1.Condition{{Type: "Ready"}}
	e, err := NewEntry(full.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if !e.HasSidecar() {
		t.Error("the sidecar of the batch is forgotten")
	}
	kept, err := json.Marshal(e.Batch)
	if err != nil {
		t.Fatal(err)
	}
	for _, dropped := range []string{"managedFields", `"image":"sidecar"`, `"sandbox"`, "taskTemplate\":{\"command", "Ready"} {
		if strings.Contains(string(kept), dropped) {
			t.Errorf("%s is kept: %s", dropped, kept)
		}
	}
	after := e.Batch.DeepCopy()
	after.Spec.Pause = true
	patch, err := client.MergeFromWithOptions(e.Batch, client.MergeFromWithOptimisticLock{}).Data(after)
	if want := `{"metadata":{"resourceVersion":"1"},"spec":{"pause":true}}`; err != nil || string(patch) != want {
		t.Errorf("the patch is %s, %v, want %s", patch, err, want)
	}
}
