package e2b

import (
	"context"
	"strconv"
	"time"

	"sandbox.internal/server/lifecycle"
)

// reachable is a sandbox that runs, with what a request to it needs.
type reachable struct {
	token           string
	daemon          string // the address of its execd
	template        string // the id of its template
	user, directory string // the defaults of its template
	private         bool
}

// ready returns a sandbox that takes requests, or why it does not. A paused sandbox that traffic
// resumes is resumed, if wakes is set and admit admits the request.
func (e *Edge) ready(ctx context.Context, id string, wakes bool, admit func(reachable) bool) (reachable, string) {
	const over = "the sandbox is not running"
	sandbox, err := e.Backend.Get(ctx, id)
	if err != nil {
		return reachable{}, "the sandbox was not found"
	}
	if state := sandbox.Status.State; state.Transient() && isAlive(state) {
		if sandbox, err = e.Backend.AwaitStable(ctx, id, changeWait*time.Second); err != nil {
			return reachable{}, over
		}
	}
	state := sandbox.Status.State
	sleeps := e.Sleeper != nil && sandbox.Wakes()
	if state != lifecycle.StateRunning && (state != lifecycle.StatePaused || !wakes || !sleeps && sandbox.Metadata[autoResumeKey] != yes) {
		return reachable{}, over
	}
	target, err := e.locate(ctx, sandbox)
	if err != nil || target.token == "" { // every client could make the signatures of an empty token
		return reachable{}, over
	}
	if !admit(target) {
		return reachable{}, "the request was refused"
	}
	if state == lifecycle.StateRunning {
		return target, ""
	}
	if sleeps {
		// It may sleep again by the time that it is looked at: then the request wakes it.
		if err = e.Sleeper.Wake(ctx, id); err == nil {
			sandbox.Status.State = lifecycle.StateRunning
		}
	} else {
		sandbox, err = e.wake(ctx, sandbox)
	}
	if err == nil {
		target, err = e.locate(ctx, sandbox)
	}
	if err != nil || target.daemon == "" || sandbox.Status.State != lifecycle.StateRunning {
		e.log(ctx, err, id, "cannot resume a sandbox for a request")
		return reachable{}, over
	}
	return target, ""
}

// locate returns how a sandbox is reached.
func (e *Edge) locate(ctx context.Context, sandbox lifecycle.Sandbox) (reachable, error) {
	location, err := e.Backend.Locate(ctx, sandbox.ID, lifecycle.DaemonPort)
	return reachable{
		token: location.Token, daemon: location.Daemon, user: sandbox.Metadata[userKey], directory: sandbox.Metadata[directoryKey],
		template: infoOf(sandbox).TemplateID, private: e.isPrivate(sandbox),
	}, err
}

// wake resumes a paused sandbox, which then lives as long as it was to live the last time.
func (e *Edge) wake(ctx context.Context, sandbox lifecycle.Sandbox) (lifecycle.Sandbox, error) {
	timeout, err := strconv.ParseInt(sandbox.Metadata[timeoutKey], 10, 64)
	if err != nil || timeout < 1 || timeout > maxTimeout {
		timeout = defaultTimeout
	}
	deadline := e.Clock().Add(min(time.Duration(timeout)*time.Second, e.MaxTimeout(sandbox.Owner)))
	if expiry := e.expiryFor(deadline, sandbox.Metadata); expiry.After(sandbox.ExpiresAt) {
		_, err := e.Backend.Renew(ctx, sandbox.ID, expiry)
		if err != nil && !e.outlives(ctx, sandbox.ID, expiry) {
			return sandbox, err
		}
	}
	// The deadline first: the old one has come, and the sandbox would be paused again.
	text := stamp(deadline)
	if _, err := e.Backend.UpdateMetadata(ctx, sandbox.ID, map[string]*string{deadlineKey: &text}); err != nil {
		return sandbox, err
	}
	if err := e.Backend.Resume(ctx, sandbox.ID); err != nil && !isOver(err) { // another request resumed it
		return sandbox, err
	}
	e.deadlines.set(sandbox.ID, deadline)
	return e.Backend.AwaitStable(ctx, sandbox.ID, changeWait*time.Second)
}

// outlives reports whether a sandbox does not expire before a time: [Edge.Keep] may have extended
// the expiry since the sandbox was read.
func (e *Edge) outlives(ctx context.Context, id string, until time.Time) bool {
	sandbox, err := e.Backend.Read(ctx, id)
	return err == nil && !until.After(sandbox.ExpiresAt)
}
