package conformance

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sandbox.internal/clients/go/execd"
	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/config"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// sleepOperations are the operations that need a backend whose sandboxes have a lifecycle.
var sleepOperations = []string{"updateLifecycle", "getHolds"}

// operationsOfSleep are these on a sandbox.
func operationsOfSleep(id string) []Operation {
	path := "/v1/sandboxes/" + id
	return []Operation{
		{"updateLifecycle", "PATCH", path + "/lifecycle", `{"idleSeconds":600}`},
		{"getHolds", "GET", path + "/holds", ""},
	}
}

// asksOfSleep is how many requests a sandbox gets that sleeps between them.
var asksOfSleep = flag.Int("sleep-requests", 0,
	"how many requests a sandbox gets that sleeps between them; 0: as many as the command that runs the test wants (random.Long)")

// testSleep lets sandboxes sleep and wakes them, and provokes every answer of the operations.
func testSleep(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Program: true, Keys: []config.Key{
		{Name: "user", SHA256: Digest(userKey), Role: config.RoleUser},
		{Name: "other", SHA256: Digest(OtherKey), Role: config.RoleUser},
		{Name: "viewer", SHA256: Digest(ViewerKey), Role: config.RoleViewer},
		{Name: "slow", SHA256: Digest(SlowKey), Role: config.RoleViewer, RateLimit: &config.RateLimit{RequestsPerSecond: 1, Burst: 1}},
	}})
	user := s.As(t, userKey)
	r := user.Idle()
	r.Lifecycle = &lifecycle.SandboxLifecycle{OnIdle: new("hibernate")}
	if !b.Hibernates {
		WantProblem(t, user.Send(t, http.MethodPost, "/v1/sandboxes", Encode(t, r)), 501, "NOT_IMPLEMENTED", "lifecycle")
	}
	r.Lifecycle = &lifecycle.SandboxLifecycle{OnIdle: new("pause"), IdleSeconds: new(0.05)}
	if !b.Sleeps {
		WantProblem(t, user.Send(t, http.MethodPost, "/v1/sandboxes", Encode(t, r)), 501, "NOT_IMPLEMENTED", "lifecycle")
		id := user.Running(t, user.Idle())
		for _, o := range operationsOfSleep(id) {
			body := o.Body
			if body != "" {
				body = `{"onIdle":"pause"}`
			}
			if o.Name == "getHolds" {
				if got := user.Send(t, o.Method, o.Path, ""); got.Status != http.StatusOK {
					t.Errorf("holds: %s", got)
				}
				continue
			}
			WantProblem(t, user.Send(t, o.Method, o.Path, body), 501, "NOT_IMPLEMENTED", "lifecycle")
		}
		return
	}
	id := user.Create(t, r)
	user.awaitAsleep(t, id) // it may have been Running between two looks
	t.Run("refused", func(t *testing.T) { testRefusedSleep(t, s, id) })
	t.Run("requests", func(t *testing.T) { testAsksOfSleep(t, user, id) })
	t.Run("kept awake", func(t *testing.T) { testKeptAwake(t, user, id) })
	t.Run("paused", func(t *testing.T) { testPausedIsNotWoken(t, b, user, id) })
	t.Run("killed service", func(t *testing.T) { testSleepSurvivesKill(t, s, user, id) })
	if b.Hibernates {
		t.Run("hibernated", func(t *testing.T) { testHibernated(t, s, s.As(t, userKey)) })
		t.Run("published port", func(t *testing.T) { testPortWakes(t, s, s.As(t, userKey)) })
	}
	excused := []string{"getHolds 400"} // there is nothing in it that could be refused but parameters
	for _, operation := range sleepOperations {
		excused = append(excused, operation+" 500", operation+" 503")
	}
	excused = append(excused, "getHolds 501", "getHolds 502") // its daemon is of this release
	if b.Hibernates {
		excused = append(excused, "updateLifecycle 501")
	}
	for _, pair := range s.Conform.Unseen() {
		if slices.Contains(sleepOperations, strings.Fields(pair)[0]) && !slices.Contains(excused, pair) {
			t.Errorf("the contract declares %q, and nothing here provokes it", pair)
		}
	}
}

// awaitAsleep waits until the sandbox sleeps.
func (c *Client) awaitAsleep(t *testing.T, id string) lifecycle.SandboxStatus {
	t.Helper()
	status := c.Await(t, id, "Paused").Status
	if status.Reason != "IDLE" {
		t.Fatalf("the sandbox is Paused because of %s: %s", status.Reason, status.Message)
	}
	return status
}

// lifecycle changes when the sandbox falls asleep.
func (c *Client) lifecycle(t *testing.T, id, body string) {
	t.Helper()
	if got := c.Send(t, http.MethodPatch, "/v1/sandboxes/"+id+"/lifecycle", body); got.Status != http.StatusOK {
		t.Fatalf("change the lifecycle: %s", got)
	}
}

// testAsksOfSleep sends requests to a sandbox that sleeps after 50 ms, by the published port and
// through the service in turn, each a command. Some come while it sleeps, some about when it falls
// asleep, some at once. All succeed, in their order.
func testAsksOfSleep(t *testing.T, c *Client, id string) {
	numbers := random.New(t)
	ways := []*Box{c.Enter(t, id), ExecdThroughTheService(t, c.Inside(t, id, DaemonPort))}
	var want strings.Builder
	for i := range cmp.Or(*asksOfSleep, random.Long(60, 300)) {
		switch numbers.IntN(3) {
		case 0:
			c.awaitAsleep(t, id)
		case 1:
			wait.Within(time.Duration(30+numbers.IntN(90))*time.Millisecond, func() bool { return false })
		}
		ways[i%2].Want(t, fmt.Sprintf("echo %d >> /tmp/order", i), "")
		fmt.Fprintln(&want, i)
	}
	ways[0].Want(t, "cat /tmp/order", want.String())
	if runs := c.Get(t, id).Status.LastTransitionAt; runs.IsZero() {
		t.Error("the sandbox never changed its state")
	}
}

// testKeptAwake: a command in the background and a terminal with a viewer keep a sandbox awake
// while another falls asleep again and again.
func testKeptAwake(t *testing.T, c *Client, other string) {
	r := c.Idle()
	r.Lifecycle = &lifecycle.SandboxLifecycle{OnIdle: new("pause"), IdleSeconds: new(0.3)}
	id := c.Create(t, r)
	c.awaitAsleep(t, id)
	box := c.Enter(t, id)
	holds := func() (kinds []string) {
		got, err := Decode[lifecycle.Holds](c.Send(t, http.MethodGet, "/v1/sandboxes/"+id+"/holds", ""))
		if err != nil {
			t.Fatal(err)
		}
		for _, hold := range got.Holds {
			kinds = append(kinds, hold.Kind)
		}
		return kinds
	}
	var viewer *websocket.Conn
	for _, tt := range []struct {
		kind  string
		begin func(ctx context.Context)
		end   func()
	}{
		{"command", func(context.Context) {
			response, err := box.Client.RunCommand(t.Context(), nil, execd.CommandRequest{Command: "echo $$ > /tmp/pid; exec sleep 1000", Background: new(true)})
			if err != nil || response.StatusCode != http.StatusOK {
				t.Fatalf("a command in the background: %v", err)
			}
			response.Body.Close()
		}, func() { box.Want(t, "kill $(cat /tmp/pid)", "") }},
		{"terminal", func(ctx context.Context) { viewer = c.viewTerminal(ctx, t, id, box) }, func() { viewer.CloseNow() }},
	} {
		tt.begin(t.Context())
		wait.Until(t, "there is a hold of a "+tt.kind, func() bool { return slices.Contains(holds(), tt.kind) }, func() any { return holds() })
		since := c.Get(t, id).Status.LastTransitionAt
		for range 3 {
			status := c.awaitAsleep(t, other)
			c.Enter(t, other).Want(t, "true", "")
			wait.Until(t, "the other sandbox sleeps again", func() bool {
				again := c.Get(t, other).Status
				return again.State == "Paused" && again.LastTransitionAt.After(status.LastTransitionAt)
			})
		}
		if got := c.Get(t, id).Status; got.State != "Running" || !got.LastTransitionAt.Equal(since) {
			t.Errorf("with a hold of a %s it is %s since %v; it was Running since %v", tt.kind, got.State, got.LastTransitionAt, since)
		}
		tt.end()
		c.awaitAsleep(t, id)
		if got := holds(); len(got) != 0 {
			t.Errorf("the holds of a sandbox that sleeps are %v", got)
		}
		if got := c.Get(t, id).Status.State; got != "Paused" {
			t.Errorf("once it is asked for its holds it is %s", got)
		}
		c.Enter(t, id).Want(t, "true", "")
	}
	c.Delete(t, id)
}

// viewTerminal opens a terminal and a view of it.
func (c *Client) viewTerminal(ctx context.Context, t *testing.T, id string, box *Box) *websocket.Conn {
	t.Helper()
	made, err := box.Client.StartTerminalWithResponse(ctx, nil, execd.TerminalRequest{})
	if err != nil || made.JSON200 == nil {
		t.Fatalf("a terminal: %v %s", err, made.Body)
	}
	endpoint := c.Endpoint(t, id, DaemonPort)
	header := http.Header{}
	for name, value := range endpoint.Headers {
		header.Set(name, value)
	}
	dialing, cancel := context.WithTimeout(ctx, wait.Patience())
	defer cancel()
	conn, _, err := websocket.Dial(dialing, "ws://"+endpoint.Endpoint+"/pty/"+made.JSON200.ID+"/attach", &websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	return conn
}

// testPausedIsNotWoken: requests do not wake what a client has paused, also when it slept then.
func testPausedIsNotWoken(t *testing.T, b Backend, c *Client, id string) {
	c.awaitAsleep(t, id)
	c.Act(t, http.MethodPost, id+"/pause", http.StatusAccepted)
	before := c.Await(t, id, "Paused").Status
	if before.Reason != "USER_PAUSE" {
		t.Errorf("the reason is %s", before.Reason)
	}
	endpoint := c.Endpoint(t, id, DaemonPort)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+endpoint.Endpoint+"/ping", nil)
	if err != nil {
		t.Fatal(err)
	}
	switch response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Patience()}).Do(request); {
	case err == nil && b.PausedAnswers:
		response.Body.Close()
	case err == nil:
		response.Body.Close()
		t.Errorf("a sandbox that a client has paused answers %s", response.Status)
	}
	WantProblem(t, c.Inside(t, id, DaemonPort).Send(t, http.MethodGet, "/ping", nil), 409, "CONFLICT", "Paused")
	if after := c.Get(t, id).Status; after != before {
		t.Errorf("the status of the sandbox is %+v, and was %+v", after, before)
	}
	c.Resume(t, id)
}

// testSleepSurvivesKill: a sandbox that sleeps when the service is killed sleeps on, and packets to
// the published port and requests through the service wake it afterwards. One with a kernel of its
// own is woken: what has come meanwhile is not seen.
func testSleepSurvivesKill(t *testing.T, s *Service, c *Client, id string) {
	for _, way := range []string{"port", "service"} {
		before := c.awaitAsleep(t, id)
		s.Kill()
		s.Boot(t)
		if c = s.As(t, c.Key); way == "port" && !s.backend.OwnKernel {
			if after := c.Get(t, id).Status; after != before {
				t.Errorf("after the kill the status of the sandbox is %+v, and was %+v", after, before)
			}
		}
		box := c.Enter(t, id)
		if way == "service" {
			box = ExecdThroughTheService(t, c.Inside(t, id, DaemonPort))
		}
		box.Want(t, "echo awake", "awake\n")
	}
}

// testHibernated: a sandbox that has slept for a second goes to the disk, also in a service that
// was killed since. The sandbox keeps its files, and what its runtime can keep of its memory.
// Requests through the service, a question for its endpoint and a resume have it run again.
func testHibernated(t *testing.T, s *Service, c *Client) {
	r := c.Idle()
	r.Lifecycle = &lifecycle.SandboxLifecycle{OnIdle: new("hibernate"), IdleSeconds: new(0.2), HibernateSeconds: new(1.0)}
	id := c.Create(t, r)
	through := func() *Box { return ExecdThroughTheService(t, c.Inside(t, id, DaemonPort)) }
	awaitDisk := func() { t.Helper(); c.awaitDisk(t, id, s.backend) }
	awaitDisk()
	through().Want(t, "echo files > /root/state; echo memory > /dev/shm/state", "")
	awaitDisk()
	c.Enter(t, id).Want(t, "cat /root/state", "files\n") // by an endpoint of the service
	awaitDisk()
	s.Kill()
	s.Boot(t)
	c = s.As(t, c.Key)
	awaitDisk()
	left := map[bool]string{true: "memory\n"}[s.backend.OwnKernel]
	through().Want(t, "cat /root/state; cat /dev/shm/state 2>/dev/null || true", "files\n"+left)
	awaitDisk()
	endpoint, err := Decode[lifecycle.Endpoint](c.Send(t, http.MethodGet, fmt.Sprintf("/v1/sandboxes/%s/endpoints/%d?wake=true", id, DaemonPort), ""))
	if err != nil {
		t.Fatal(err)
	}
	EnterAt(t, endpoint).Want(t, "cat /root/state", "files\n")
	awaitDisk()
	c.Resume(t, id)
	c.Enter(t, id).Want(t, "cat /root/state", "files\n")
	c.Delete(t, id)
}

// awaitDisk waits until the sandbox is on the disk.
func (c *Client) awaitDisk(t *testing.T, id string, b Backend) {
	t.Helper()
	want := "HIBERNATED_FILES"
	if b.OwnKernel {
		want = "HIBERNATED"
	}
	var last lifecycle.SandboxStatus
	wait.Until(t, "the sandbox is on the disk", func() bool {
		last = c.Get(t, id).Status
		return last.State == "Paused" && last.Reason == want
	}, func() any { return last })
}

// testPortWakes: a sandbox that is on the disk keeps its published port, also in a service that was
// killed since. Requests to it wait until the sandbox runs, unless they do not wake it.
func testPortWakes(t *testing.T, s *Service, c *Client) {
	r := c.Idle()
	r.Lifecycle = &lifecycle.SandboxLifecycle{OnIdle: new("hibernate"), IdleSeconds: new(0.2), HibernateSeconds: new(1.0)}
	id := c.Create(t, r)
	c.awaitDisk(t, id, s.backend)
	endpoint, err := Decode[lifecycle.Endpoint](c.Send(t, http.MethodGet, fmt.Sprintf("/v1/sandboxes/%s/endpoints/%d?wake=true", id, DaemonPort), ""))
	if err != nil {
		t.Fatal(err)
	}
	c.awaitDisk(t, id, s.backend)
	EnterAt(t, endpoint).Want(t, "echo files > /root/state", "")
	c.awaitDisk(t, id, s.backend)
	var all sync.WaitGroup
	for range 20 {
		box := EnterAt(t, endpoint)
		all.Go(func() {
			answer, err := box.Client.GetMetricsWithResponse(t.Context(), nil)
			if err != nil || answer.StatusCode() != http.StatusOK {
				t.Errorf("a request among 20 to a sandbox on the disk: %v", err)
			}
		})
	}
	all.Wait()
	c.awaitDisk(t, id, s.backend)
	s.Kill()
	s.Boot(t)
	c = s.As(t, c.Key)
	published, _, _ := strings.Cut(endpoint.Endpoint, "/")
	wait.Until(t, "the next service listens at the published port", func() bool {
		conn, err := net.DialTimeout("tcp", published, wait.Patience())
		return err == nil && conn.Close() == nil
	})
	EnterAt(t, endpoint).Want(t, "cat /root/state", "files\n")
	c.lifecycle(t, id, `{"autoResume":false}`)
	c.awaitDisk(t, id, s.backend)
	if conn, err := net.DialTimeout("tcp", published, wait.Patience()); err == nil {
		t.Error("a sandbox on the disk that requests do not wake takes a connection", conn.Close())
	}
	c.awaitDisk(t, id, s.backend)
	c.Resume(t, id)
	EnterAt(t, endpoint).Want(t, "cat /root/state", "files\n")
	c.Delete(t, id)
}

// testRefusedSleep provokes the errors that the contract declares.
func testRefusedSleep(t *testing.T, s *Service, id string) {
	user, operations := s.As(t, userKey), operationsOfSleep(id)
	for _, o := range operations {
		WantProblem(t, s.As(t, "wrong").Send(t, o.Method, o.Path, o.Body), 401, "UNAUTHORIZED", KeyHeader)
		WantProblem(t, s.As(t, OtherKey).Send(t, o.Method, o.Path, o.Body), 403, "FORBIDDEN")
	}
	WantProblem(t, s.As(t, ViewerKey).Send(t, operations[0].Method, operations[0].Path, operations[0].Body), 403, "FORBIDDEN", "viewer")
	s.As(t, ViewerKey).Send(t, operations[1].Method, operations[1].Path, "")
	RefuseUnknownParameters(t, s, operations)
	AskTooOften(t, s, operations)
	ended := user.Running(t, s.Idle())
	user.Delete(t, ended)
	user.Await(t, ended, "Terminated")
	for _, o := range operationsOfSleep(ended) {
		WantProblem(t, user.Send(t, o.Method, o.Path, o.Body), 409, "CONFLICT", "Terminated")
	}
	for _, o := range operationsOfSleep("none") {
		WantProblem(t, user.Send(t, o.Method, o.Path, o.Body), 404, "SANDBOX_NOT_FOUND", "none")
	}
	path := operations[0].Path
	for body, field := range map[string]string{
		`{"onIdle":"stop"}`: "onIdle", `{"idleSeconds":0.01}`: "idleSeconds", `{"onTimeout":"stop"}`: "onTimeout", `{"autoResume":1}`: "autoResume", `{"idle":1}`: "idle",
	} {
		WantProblem(t, user.Send(t, http.MethodPatch, path, body), 400, "INVALID_REQUEST_BODY", field)
	}
	if !s.backend.Hibernates {
		WantProblem(t, user.Send(t, http.MethodPatch, path, `{"onIdle":"hibernate"}`), 501, "NOT_IMPLEMENTED", "hibernate")
	}
	large := fmt.Sprintf(`{"onIdle":%q}`, strings.Repeat("x", 1<<20))
	WantProblem(t, user.Send(t, http.MethodPatch, path, large), 413, "REQUEST_TOO_LARGE", "body")
	changed, err := Decode[lifecycle.SandboxLifecycle](user.Send(t, http.MethodPatch, path, `{"onTimeout":"pause"}`))
	if err != nil || Value(changed.OnIdle) != "pause" || Value(changed.IdleSeconds) != 0.05 || Value(changed.OnTimeout) != "pause" || !Value(changed.AutoResume) {
		t.Errorf("changed to %+v, %v", changed, err)
	}
}
