package ingress_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"sandbox.internal/test/wait"
)

// TestRequestsWakeThroughTheIngress: a request that is let in has a sandbox woken that sleeps, as
// the list or an event says; one without the token does not. The service decides on it.
func TestRequestsWakeThroughTheIngress(t *testing.T) {
	c := newControl(t, http.HandlerFunc(showRequest))
	c.reasons["listed"], c.reasons["other"], c.reasons["paused"] = "IDLE", "TIMEOUT", "USER_PAUSE"
	for _, id := range []string{"listed", "other", "paused"} {
		c.set(id, "Paused", true)
	}
	c.set("sleeping", "Running", true)
	in := c.ingress(t, nil)
	wait.Until(t, "the list", func() bool { return in.admins(t, "/healthz").StatusCode == 200 })
	woken := func() (n int) {
		c.look(func() { n = c.woken })
		return n
	}
	stranger := in.request(t, http.MethodGet, "listed", 8000, "/", nil)
	stranger.Header.Set("X-EXECD-ACCESS-TOKEN", "wrong")
	if got := do(t, stranger); got.StatusCode != 401 || woken() != 0 {
		t.Errorf("a request that is not let in: %d, %d wakes", got.StatusCode, woken())
	}
	for _, tt := range []struct {
		id           string
		status, wake int
	}{{"listed", 200, 1}, {"other", 503, 0}, {"paused", 503, 0}} {
		before := woken()
		if got := in.status(t, tt.id); got != tt.status || woken()-before != tt.wake {
			t.Errorf("%s: %d, %d wakes", tt.id, got, woken()-before)
		}
	}
	in.status(t, "sleeping")
	asked := func() (n int) {
		c.look(func() { n = c.asked["sleeping"] })
		return n
	}
	before := asked()
	c.look(func() { c.reasons["sleeping"] = "IDLE" })
	c.set("sleeping", "Paused", false)
	wait.Until(t, "the ingress has the sandbox woken", func() bool { return in.status(t, "sleeping") == 200 && woken() > 1 })
	after := asked()
	c.look(func() { c.reasons["sleeping"] = "CONTAINER_RUNNING" })
	c.set("sleeping", "Running", false)
	wait.Until(t, "no request wakes the sandbox", func() bool {
		before := woken()
		return in.status(t, "sleeping") == 200 && woken() == before
	})
	if before != 1 || after < 2 {
		t.Errorf("%d and %d questions for the endpoint", before, after)
	}
}

// TestIngressAsksAgain: the endpoint of a sandbox that was on the disk is asked for again, whoever
// has woken it: its former address may be another sandbox's.
func TestIngressAsksAgain(t *testing.T) {
	c := newControl(t, http.HandlerFunc(showRequest))
	c.set("box", "Running", true)
	in := c.ingress(t, nil)
	wait.Until(t, "the sandbox is reached", func() bool { return in.status(t, "box") == 200 })
	asked := func() (n int) {
		c.look(func() { n = c.asked["box"] })
		return n
	}
	c.look(func() { c.reasons["box"] = "IDLE" })
	c.set("box", "Paused", false)
	c.look(func() {
		c.emit(fmt.Sprintf(`{"type":"progress","sandboxId":"box","timestamp":%q,"reason":"HIBERNATED"}`, time.Now().UTC().Format(time.RFC3339Nano)))
	})
	c.look(func() { c.reasons["box"] = "WOKEN" })
	c.set("box", "Resuming", false)
	c.look(func() { c.reasons["box"] = "CONTAINER_RUNNING" })
	before := asked()
	c.set("box", "Running", false)
	wait.Until(t, "the ingress asks again", func() bool { return in.status(t, "box") == 200 && asked() > before })
}
