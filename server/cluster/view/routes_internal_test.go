package view

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// secrets is an API server with the Secret of every sandbox; some of them it cannot read.
type secrets struct {
	mu    sync.Mutex
	fails map[string]bool // by the sandbox
}

func (s *secrets) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails[key.Name] {
		return errors.New("Internal error occurred: unable to transform key")
	}
	secret := object.(*corev1.Secret)
	secret.Labels = map[string]string{LabelSecret: key.Name}
	secret.Data = map[string][]byte{EntryExecdToken: []byte("token of " + key.Name)}
	return nil
}

func (s *secrets) mend(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.fails, name)
}

// rows is an ingress's table.
type rows struct {
	mu  sync.Mutex
	all map[string]Route
}

func (r *rows) Replace(all []Route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = make(map[string]Route)
	for _, route := range all {
		r.all[route.ID] = route
	}
}

func (r *rows) Update(route Route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[route.ID] = route
}

func (r *rows) Forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, id)
}

func (r *rows) token(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[id].Token
}

// TestUnreadableSecret: a Secret that the API server cannot read keeps its own sandbox from having
// a route, and no other.
func TestUnreadableSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		api, table := &secrets{fails: map[string]bool{"bad": true, "gone": true}}, &rows{}
		r := &routes{ctx: ctx, table: table, api: api, logger: zerolog.Nop(), known: make(map[types.UID]*tokens), unread: make(map[types.UID]*Entry)}
		entry := func(name, address string) *Entry {
			return &Entry{tokens: &tokens{}, Sandbox: lifecycle.Sandbox{ID: name, Status: lifecycle.Status{State: lifecycle.StateRunning}},
				Batch: &v1alpha1.BatchSandbox{
					ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Annotations: map[string]string{AnnotationSecret: name}},
					Status:     v1alpha1.BatchSandboxStatus{Addresses: []string{address}},
				}}
		}
		done := make(chan struct{})
		go func() { defer close(done); r.readUnread() }()
		listed := map[string]*Entry{}
		for _, name := range []string{"bad", "gone", "first"} {
			listed[name] = entry(name, "192.0.2.1")
		}
		r.replace(listed, 1)
		r.take(entry("bad", "192.0.2.2"), false)
		r.take(entry("second", "192.0.2.3"), false)
		time.Sleep(2 * firstUnread)
		for _, name := range []string{"first", "second"} {
			if got := table.token(name); got != "token of "+name {
				t.Errorf("%s has the token %q while another Secret cannot be read", name, got)
			}
		}
		if got := table.token("bad"); got != "" {
			t.Errorf("a token that could not be read is %q", got)
		}
		r.take(entry("gone", "192.0.2.1"), true)
		api.mend("gone")
		api.mend("bad")
		time.Sleep(2 * longestUnread)
		cancel()
		<-done
		if got := table.all["bad"]; got.Token != "token of bad" || got.Address != "192.0.2.2:44772" {
			t.Errorf("once its Secret can be read, the route is %+v", got)
		}
		if _, ok := table.all["gone"]; ok {
			t.Error("a sandbox that has ended came back")
		}
		if len(r.unread) > 0 {
			t.Errorf("%d entries are kept", len(r.unread))
		}
	})
}
