package e2e_test

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// crashClient is one client with one sandbox at a time, and what it was promised.
type crashClient struct {
	st      *crashRun
	t       *testing.T
	random  *rand.Rand
	image   string
	auth    string // a password
	timeout int
	lives   int // how many sandboxes it may still create

	// Of the sandbox that it has:
	id       string
	name     string
	key      string
	state    string // Pending until it was seen settled; what it must be, or become
	settled  bool   // the state was seen
	gone     bool   // it was deleted, has ended or was ended
	reasons  []string
	original time.Time // expiry at creation
	expires  time.Time
	metadata map[string]string
	past     []string // the sandboxes before it
}

func (st *crashRun) addClient(t *testing.T, number uint64, image string, timeout int) *crashClient {
	if image == "" {
		image = busyboxImage
	}
	return &crashClient{st: st, t: t, random: rand.New(rand.NewPCG(st.seed, number)), image: image,
		timeout: timeout, lives: 3}
}

// begin creates a sandbox. A create that is not answered is repeated with its key, as careful
// clients do.
func (p *crashClient) begin() {
	p.lives--
	p.name, p.key = uuid.NewString(), uuid.NewString()
	r := conformance.Request(p.image, "sleep", "1000")
	if p.image != busyboxImage {
		r = conformance.Request(p.image, "/forever")
	}
	if p.auth != "" {
		r.Image.Auth = &lifecycle.ImageAuth{Username: registryUser, Password: p.auth}
	}
	r.Timeout = p.timeout
	r.Metadata = lifecycle.Metadata{"name": p.name}
	body, err := json.Marshal(r)
	if err != nil {
		p.t.Error(err)
		return
	}
	got := p.retry(http.MethodPost, "/v1/sandboxes", string(body), "Idempotency-Key", p.key)
	created, err := conformance.Decode[lifecycle.CreatedSandbox](got)
	if err != nil || got.Status != http.StatusAccepted {
		p.t.Errorf("create: %v: %s", err, got)
		return
	}
	p.id, p.state, p.settled, p.gone, p.reasons = created.ID, "Running", false, false, nil
	p.original, p.expires = created.ExpiresAt, created.ExpiresAt
	p.metadata = map[string]string{"name": p.name}
}

// retry repeats a request until it is answered.
func (p *crashClient) retry(method, path, body string, headers ...string) (got conformance.Answer) {
	answered := false
	wait.Within(wait.Patience(), func() bool {
		got, answered = p.st.try(method, path, body, headers...)
		return answered
	})
	if !answered {
		p.t.Errorf("%s %s: no answer", method, path)
		return conformance.Answer{}
	}
	return got
}

// run does one thing after the other until the run is over or there is nothing left to play
// with.
func (p *crashClient) run() {
	if p.id == "" {
		p.begin()
	}
	for p.id != "" {
		select {
		case <-p.st.over:
			return
		default:
		}
		if p.gone {
			p.past = append(p.past, p.id)
			p.begin()
			continue
		}
		pause(p.random, 300*time.Millisecond)
		pulled := p.image == busyboxImage
		switch n := p.random.IntN(100); {
		case n < 25 && pulled:
			p.toggle()
		case n < 40:
			p.renew(time.Duration(600+p.random.IntN(3000)) * time.Second)
		case n < 55:
			p.patch()
		case n < 75 && pulled:
			p.look()
		case n < 85 && pulled && p.timeout > 60:
			p.disturbContainer()
		case n < 90 && pulled && p.timeout > 60 && p.lives > 0:
			p.delete()
		}
	}
}

// act asks for a change. It returns whether it was acknowledged; refused is what a sandbox that has
// not settled may answer. What an unanswered request came to is for the caller to find out.
func (p *crashClient) act(method, path, body string,
	want int) (got conformance.Answer, acknowledged, answered bool) {
	got, answered = p.st.try(method, "/v1/sandboxes/"+p.id+path, body)
	switch {
	case !answered:
		p.settled = false
		return got, false, false
	case got.Status == want:
		return got, true, true
	case got.Status == http.StatusConflict && !p.settled:
		return got, false, true
	}
	p.t.Errorf("%s %s%s of a sandbox that must be %s: %s, want %d", method, p.id, path, p.state,
		got, want)
	return got, false, true
}

func (p *crashClient) toggle() {
	action, to := "/pause", "Paused"
	if p.state == "Paused" {
		action, to = "/resume", "Running"
	}
	_, acknowledged, answered := p.act(http.MethodPost, action, "", http.StatusAccepted)
	switch {
	case acknowledged:
		p.state, p.settled = to, false
	case !answered:
		p.resolve(p.state, to)
	}
}

func (p *crashClient) renew(by time.Duration) {
	at := time.Now().Add(by).UTC().Truncate(time.Second)
	if !at.After(p.expires) {
		return
	}
	got, acknowledged, answered := p.act(http.MethodPost, "/renew-expiration",
		conformance.Renewal(at.Format(time.RFC3339)), http.StatusOK)
	switch {
	case acknowledged:
		p.expires = at
	case !answered:
		if seen := p.see().ExpiresAt; seen.Equal(at) {
			p.expires = at
		}
	default:
		p.t.Errorf("renew %s: %s", p.id, got)
	}
	p.compare(p.see())
}

func (p *crashClient) patch() {
	value := uuid.NewString()
	_, acknowledged, answered := p.act(http.MethodPatch, "/metadata", `{"note": "`+value+`"}`,
		http.StatusOK)
	if acknowledged || !answered && p.see().Metadata["note"] == value {
		p.metadata["note"] = value
	}
	p.compare(p.see())
}

func (p *crashClient) delete() {
	if _, acknowledged, answered := p.act(http.MethodDelete, "", "",
		http.StatusNoContent); acknowledged {
		p.end("Terminated", "USER_DELETE")
	} else if !answered {
		switch p.see().Status.State {
		case "Stopping", "Terminated":
			p.end("Terminated", "USER_DELETE")
		}
	}
}

func (p *crashClient) end(state string, reasons ...string) {
	p.state, p.reasons, p.settled, p.gone = state, reasons, false, true
}

// disturbContainer does something to the container, which the service has to find out.
func (p *crashClient) disturbContainer() {
	if !p.look() {
		return
	}
	p.st.counts.disturbed.Add(1)
	container, engine := "sandbox-"+p.id, p.st.s.engine
	var err error
	p.settled = false
	switch n := p.random.IntN(10); {
	case p.state == "Paused" && (n < 8 || p.lives == 0):
		if err = engine.Thaw(wait.Context(p.t), container); err == nil {
			p.state = "Running"
		}
	case p.state == "Running" && (n < 6 || p.lives == 0):
		if err = engine.Freeze(wait.Context(p.t), container); err == nil {
			p.state = "Paused"
		}
	case p.state == "Running" && n < 8:
		if err = engine.Stop(wait.Context(p.t), container, 2*time.Second); err == nil {
			p.end("Failed", "ENTRYPOINT_EXITED", "REMOVED_EXTERNALLY")
		}
	default:
		if err = engine.Remove(wait.Context(p.t), container); err == nil {
			p.end("Failed", "REMOVED_EXTERNALLY", "ENTRYPOINT_EXITED")
		}
	}
	if err != nil {
		p.t.Errorf("meddle with %s: %v", p.id, err)
	}
	p.await()
}

// see returns the sandbox as the service shows it.
func (p *crashClient) see() lifecycle.Sandbox {
	got := p.retry(http.MethodGet, "/v1/sandboxes/"+p.id, "")
	sandbox, err := conformance.Decode[lifecycle.Sandbox](got)
	if err != nil {
		p.t.Errorf("a sandbox that was accepted: GET %s: %v", p.id, err)
	}
	return sandbox
}

func (p *crashClient) last() lifecycle.SandboxStatus { return p.see().Status }

// settle polls until the service has nothing left to do for the sandbox.
func (p *crashClient) settle() (sandbox lifecycle.Sandbox) {
	settled := wait.Within(wait.Patience(), func() bool {
		sandbox = p.see()
		state := sandbox.Status.State
		return state == "Running" || state == "Paused" || conformance.Final(state)
	})
	if !settled {
		p.t.Errorf("%s is still %s (%s)", p.id, sandbox.Status.State, sandbox.Status.Message)
	}
	return sandbox
}

// look compares the settled sandbox with what it must be. It returns false when it is not that.
func (p *crashClient) look() bool {
	seen := p.settle()
	p.compare(seen)
	if seen.Status.State != p.state {
		p.t.Errorf("%s is %s (%s: %s), must be %s", p.id, seen.Status.State, seen.Status.Reason,
			seen.Status.Message, p.state)
		p.end(seen.Status.State, seen.Status.Reason)
		return false
	}
	p.settled = true
	return true
}

// resolve finds out what a request that was not answered has come to.
func (p *crashClient) resolve(either, or string) {
	p.state = either
	if seen := p.settle().Status.State; seen == or {
		p.state = or
	}
	p.look()
}

// await polls until the service has found out what happened to the container.
func (p *crashClient) await() {
	var status lifecycle.SandboxStatus
	p.settled = wait.Within(wait.Patience(), func() bool {
		status = p.see().Status
		return status.State == p.state &&
			(len(p.reasons) == 0 || slices.Contains(p.reasons, status.Reason))
	})
	if !p.settled {
		p.t.Errorf("%s is %s (%s: %s), must become %s %v", p.id, status.State, status.Reason,
			status.Message, p.state, p.reasons)
	}
}

// compare holds what GET shows against what was promised, whatever the state.
func (p *crashClient) compare(seen lifecycle.Sandbox) {
	if !seen.ExpiresAt.Equal(p.expires) {
		p.t.Errorf("%s expires at %v, promised was %v", p.id, seen.ExpiresAt, p.expires)
	}
	if !maps.Equal(seen.Metadata, p.metadata) {
		p.t.Errorf("%s has the metadata %v, promised was %v", p.id, seen.Metadata, p.metadata)
	}
}

// expectLabels makes the client expect what the labels of its sandbox's container have.
func (p *crashClient) expectLabels() {
	container, err := p.st.s.engine.Inspect(wait.Context(p.t), "sandbox-"+p.id)
	if err != nil {
		p.t.Errorf("the container of %s, which is %s: %v", p.id, p.state, err)
		return
	}
	var record struct {
		Sandbox struct {
			ExpiresAt time.Time
			Metadata  map[string]string
		}
	}
	if err := json.Unmarshal([]byte(container.Labels["sandbox.internal/record"]),
		&record); err != nil {
		p.t.Errorf("the label of %s: %v", p.id, err)
	}
	p.expires, p.metadata = record.Sandbox.ExpiresAt, record.Sandbox.Metadata
}

// checkEnd checks the end of the client's last sandbox.
func (p *crashClient) checkEnd() {
	switch {
	case p.auth != "": // the pull cannot go on after a crash
		p.end("Failed", "IMAGE_PULL_ERROR")
		p.await()
	case p.timeout == 60 && p.expires.Equal(p.original):
		p.end("Terminated", "EXPIRED")
		p.await()
		if at := p.last().LastTransitionAt; at.Before(p.expires) {
			p.t.Errorf("%s expired at %v, promised was %v", p.id, at, p.expires)
		}
	case p.gone:
		p.await()
	default:
		if p.look() && p.state == "Running" {
			p.st.s.Enter(p.t, p.id).Want(p.t, "echo usable", "usable\n")
		}
	}
	p.compare(p.see())
}
