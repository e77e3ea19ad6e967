package host_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

func TestIdempotentCreate(t *testing.T) {
	const clients = 50
	m := newMachine(t).start()
	ids := make([]string, clients)
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			sandbox, err := m.host.Create(context.Background(), spec(), lifecycle.CreateOptions{Owner: "one", IdempotencyKey: "key"})
			if err != nil {
				t.Error(err)
			}
			ids[i] = sandbox.ID
		})
	}
	group.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("one key gave %s and %s", ids[0], id)
		}
	}
	create := func(change func(*lifecycle.Spec), owner, key string) (lifecycle.Sandbox, error) {
		s := spec()
		if change != nil {
			change(&s)
		}
		return m.host.Create(t.Context(), s, lifecycle.CreateOptions{Owner: owner, IdempotencyKey: key})
	}
	if _, err := create(func(s *lifecycle.Spec) { s.Image = "another" }, "one", "key"); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("the same key with another body: %v", err)
	}
	if other, err := create(nil, "two", "key"); err != nil || other.ID == ids[0] {
		t.Errorf("the same key of another owner: %v, %v", other.ID, err)
	}
	m.host.Close()
	m.start()
	if again, err := create(nil, "one", "key"); err != nil || again.ID != ids[0] {
		t.Errorf("after a restart: %v, %v", again.ID, err)
	}
	m.clock.advance(25 * time.Hour)
	if later, err := create(nil, "one", "key"); err != nil || later.ID == ids[0] {
		t.Errorf("a day later: %v, %v", later.ID, err)
	}
}

func TestIdempotencyKeyOfAForgottenSandbox(t *testing.T) {
	m := newMachine(t)
	m.options.TerminatedRetention = 0
	m.start()
	options := lifecycle.CreateOptions{IdempotencyKey: "key"}
	sandbox, err := m.host.Create(t.Context(), spec(), options)
	if err != nil {
		t.Fatal(err)
	}
	m.await(sandbox.ID, lifecycle.StateRunning)
	m.engine.exit(container(sandbox.ID), 0, false)
	m.awaitForgotten(sandbox.ID)
	if _, err := m.host.Create(t.Context(), spec(), options); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("error: %v", err)
	}
	m.clock.advance(lifecycle.IdempotencyWindow)
	if later, err := m.host.Create(t.Context(), spec(), options); err != nil || later.ID == sandbox.ID {
		t.Errorf("a day later: %v, %v", later.ID, err)
	}
}

func TestCreateThatCannotBeMadeDurable(t *testing.T) {
	m := newMachine(t).start()
	m.store.fail(callInsert, errDisk)
	for _, key := range []string{"", "key"} {
		_, err := m.host.Create(t.Context(), spec(), lifecycle.CreateOptions{IdempotencyKey: key})
		if err == nil || kindOf(err) != "" {
			t.Errorf("error %v, want an internal one", err)
		}
	}
	if listing := m.list(lifecycle.Filter{}, 1, 10); listing.Total != 0 {
		t.Errorf("sandboxes: %+v", listing.Items)
	}
	m.store.fail(callInsert, nil)
	if _, err := m.host.Create(t.Context(), spec(), lifecycle.CreateOptions{IdempotencyKey: "key"}); err != nil {
		t.Errorf("the same key once the store works: %v", err)
	}
}

func TestCreateRefuses(t *testing.T) {
	m := newMachine(t)
	m.box.AllowedHostPaths = []string{"/nowhere"}
	m.start()
	directory := t.TempDir()
	tests := map[string]func(*lifecycle.Spec){
		"no image":       func(s *lifecycle.Spec) { s.Image = "" },
		"network policy": func(s *lifecycle.Spec) { s.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny"} },
		"directory that is not allowed": func(s *lifecycle.Spec) {
			s.Volumes = []lifecycle.Volume{{Name: "v", MountPath: "/v", HostPath: directory}}
		},
		"directory that does not exist": func(s *lifecycle.Spec) {
			s.Volumes = []lifecycle.Volume{{Name: "v", MountPath: "/v", HostPath: directory + "/missing"}}
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			s := spec()
			change(&s)
			if _, err := m.host.Create(t.Context(), s, lifecycle.CreateOptions{}); kindOf(err) != lifecycle.KindInvalid {
				t.Errorf("error: %v", err)
			}
		})
	}
}

func TestEndpointWaitsUntilTheSandboxIsUsable(t *testing.T) {
	m := newMachine(t).start()
	starting, answering := newGate(), newGate()
	m.engine.failBefore(callStart, starting.fault)
	m.engine.answerPing(func(_ http.ResponseWriter, r *http.Request) { _ = answering.fault(r.Context(), "") })
	id := m.create()
	starting.await(t)

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := m.host.Locate(short, id, 80); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("a client that does not wait: %v", err)
	}
	got := make(chan lifecycle.Endpoint, 1)
	go func() {
		location, err := m.host.Locate(context.Background(), id, 8000)
		if err != nil {
			t.Error(err)
		}
		got <- location.Endpoint
	}()
	close(starting.open)
	answering.await(t)
	select {
	case endpoint := <-got:
		t.Errorf("the endpoint %+v was returned before execd answered there", endpoint)
	default:
	}
	close(answering.open)
	endpoint := wait.For(t, "the endpoint, as execd answers", got)
	if endpoint.Port != m.engine.port(container(id)) || endpoint.Path != "/proxy/8000" || endpoint.Headers["X-EXECD-ACCESS-TOKEN"] == "" {
		t.Errorf("endpoint: %+v", endpoint)
	}
	if state := m.get(id).Status.State; state != lifecycle.StateRunning {
		t.Errorf("state: %s", state)
	}
}

func TestEndpointOfASandboxThatFails(t *testing.T) {
	m := newMachine(t).start()
	pull := newGate()
	m.engine.failBefore(callEnsureImage, func(ctx context.Context, ref string) error {
		_ = pull.fault(ctx, ref)
		return fmt.Errorf("%w: manifest unknown", engine.ErrImage)
	})
	id := m.create()
	pull.await(t)
	failed := make(chan error, 1)
	go func() { failed <- errorOf(m.host.Locate(context.Background(), id, 80)) }()
	close(pull.open)
	if err := wait.For(t, "an answer about the port of a Failed sandbox", failed); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("error: %v", err)
	}
	for _, port := range []int{0, -1, 65536} {
		if _, err := m.host.Locate(t.Context(), id, port); kindOf(err) != lifecycle.KindInvalid {
			t.Errorf("port %d: %v", port, err)
		}
	}
}

func (m *machine) list(filter lifecycle.Filter, page, size int) lifecycle.Listing {
	m.t.Helper()
	listing, err := m.host.List(context.Background(), filter, lifecycle.Page{Number: page, Size: size})
	if err != nil {
		m.t.Fatal(err)
	}
	return listing
}

func TestList(t *testing.T) {
	const sandboxes = 300
	m := newMachine(t)
	first := m.clock.now().UTC()
	for i := range sandboxes {
		r := m.record(fmt.Sprintf("s%03d", i), lifecycle.StateTerminated)
		r.Sandbox.CreatedAt = first.Add(time.Duration(i/3) * time.Second) // always three at once
		r.Sandbox.Owner = []string{"one", "two"}[i%2]
		r.Sandbox.Metadata = map[string]string{"tens": fmt.Sprint(i / 10), "kind": "test"}
		if i%5 == 0 {
			r.Sandbox.Status.State, r.Removed = lifecycle.StateFailed, true
		}
		m.had(r, "")
	}
	m.start()
	var all []lifecycle.Sandbox
	for page := 1; ; page++ {
		listing := m.list(lifecycle.Filter{}, page, 7)
		if listing.Total != sandboxes {
			t.Fatalf("total %d", listing.Total)
		}
		if len(listing.Items) == 0 {
			break
		}
		all = append(all, listing.Items...)
	}
	if len(all) != sandboxes {
		t.Fatalf("%d sandboxes on all pages", len(all))
	}
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; a.CreatedAt.Before(b.CreatedAt) || (a.CreatedAt.Equal(b.CreatedAt) && a.ID >= b.ID) {
			t.Fatalf("%s comes before %s", a.ID, b.ID)
		}
	}
	owner := "one"
	tests := []struct {
		name   string
		filter lifecycle.Filter
		want   int
	}{
		{"state", lifecycle.Filter{States: []lifecycle.State{lifecycle.StateFailed}}, 60},
		{"states", lifecycle.Filter{States: []lifecycle.State{lifecycle.StateFailed, lifecycle.StateTerminated}}, 300},
		{"no such state", lifecycle.Filter{States: []lifecycle.State{lifecycle.StateRunning}}, 0},
		{"owner", lifecycle.Filter{Owner: &owner}, 150},
		{"metadata", lifecycle.Filter{Metadata: map[string]string{"tens": "4", "kind": "test"}}, 10},
		{"everything", lifecycle.Filter{Metadata: map[string]string{"tens": "4"}, Owner: &owner, States: []lifecycle.State{lifecycle.StateFailed}}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			listing := m.list(tt.filter, 1, 1000)
			if listing.Total != tt.want || len(listing.Items) != tt.want {
				t.Errorf("%d of %d, want %d", len(listing.Items), listing.Total, tt.want)
			}
		})
	}
	if listing := m.list(lifecycle.Filter{}, 1<<62, 1000); len(listing.Items) != 0 || listing.Items == nil || listing.Total != sandboxes {
		t.Errorf("a page far behind the last: %+v", listing)
	}
	if listing := m.list(lifecycle.Filter{}, 1<<61+1, 8); len(listing.Items) != 0 {
		t.Errorf("a page whose place overflows shows %d sandboxes", len(listing.Items))
	}
	for _, page := range []lifecycle.Page{{Number: 0, Size: 1}, {Number: 1, Size: 0}, {Number: 1, Size: 1001}} {
		if _, err := m.host.List(t.Context(), lifecycle.Filter{}, page); kindOf(err) != lifecycle.KindInvalid {
			t.Errorf("%+v: %v", page, err)
		}
	}
}

func TestCloseLeavesSandboxesAlone(t *testing.T) {
	m := newMachine(t).start()
	running := m.running()
	hangingFreeze, hangingCreate := newGate(), newGate()
	m.engine.failBefore(callFreeze, hangingFreeze.fault)
	m.engine.failBefore(callCreate, hangingCreate.fault)
	pending := m.create()
	hangingCreate.await(t)
	if err := m.host.Pause(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	hangingFreeze.await(t)
	closed := make(chan struct{})
	go func() { m.host.Close(); close(closed) }()
	wait.For(t, "the end of Close, which an engine that hangs must not hold back", closed)
	if m.engine.status(container(running)) != engine.StatusRunning {
		t.Error("a container was touched")
	}
	for name, err := range map[string]error{
		"delete": m.host.Delete(t.Context(), pending),
		"pause":  m.host.Pause(t.Context(), running),
	} {
		if kindOf(err) != lifecycle.KindUnavailable {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}
