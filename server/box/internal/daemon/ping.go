// Package daemon asks the execds of sandboxes.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/wire/sandboxhttp"
)

// ErrNotDaemon: the process that listens at the address is not the sandbox's execd.
var ErrNotDaemon = errors.New("process on execd's port does not have the sandbox's token")

// ForeignPatience is for how long something else may answer in place of execd before its sandbox
// has failed. On the host's network the port may still be another sandbox's, which is on its end;
// execd's process 1 waits 5 s for that (execd/cmd/execd-init).
const ForeignPatience = 10 * time.Second

// Clients asks the daemons of sandboxes.
type Clients struct {
	pinger  *http.Client
	watcher *http.Client // of reports
	asker   *http.Client
}

// New returns clients without connections.
func New() *Clients {
	return &Clients{
		// A fresh connection for every question: a port may just have been taken over from another
		// sandbox.
		pinger: sandboxhttp.NewClient(sandboxhttp.Options{Timeout: 2 * time.Second}),
		// Reports last for as long as a sandbox runs and sleeps.
		watcher: sandboxhttp.NewClient(sandboxhttp.Options{HeaderTimeout: idleHeaders, MaxAnswer: sandboxhttp.Unbounded}),
		asker:   sandboxhttp.NewClient(sandboxhttp.Options{Timeout: idleHeaders, MaxAnswer: lifecycle.MaxHoldsBytes}),
	}
}

// Close closes connections that are not in use.
func (p *Clients) Close() { p.pinger.CloseIdleConnections() }

// Address is where an execd is to be asked, and the token that it holds.
type Address struct {
	Host  string
	Port  int
	Token string
}

// AwaitAnswer pings again and again until execd answers; after atMost it stops and returns why it
// did not. A question that is under way by then is seen through: a sandbox with a hundredth of a
// core needs longer than that for an answer. began is when execd was asked first.
func (p *Clients) AwaitAnswer(ctx context.Context, d Address, began time.Time, atMost time.Duration) error {
	window, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		err := p.ping(ctx, d)
		if err == nil || !clock.Sleep(window, askAgain(time.Since(began))) {
			return err
		}
	}
}

// askAgain is the pause before the next question to an execd that has not answered for so long. On
// a quiet machine it answers after some 20 ms, and asking often finds it soon. Where it takes
// longer the processors are busy, with starting execd among other things, and each question takes
// from that: it costs a connection to the engine's proxy and one from there into the sandbox. So
// the pause is a tenth of what has been waited, and delays no answer by more.
func askAgain(waited time.Duration) time.Duration {
	return min(max(2*time.Millisecond, waited/10), 50*time.Millisecond)
}

// ping asks once, for a proof that only the holder of the token can give. The token itself is not
// sent: what listens may be the sandbox's own program, or on the host's network another one's. It
// returns ErrNotDaemon for an answer without the proof.
func (p *Clients) ping(ctx context.Context, d Address) error {
	url := "http://" + net.JoinHostPort(d.Host, strconv.Itoa(d.Port)) + "/ping"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	challenge := sandboxhttp.NewChallenge()
	request.Header.Set(sandboxhttp.ChallengeHeader, challenge)
	response, err := p.pinger.Do(request)
	if errors.Is(err, sandboxhttp.ErrNotHTTP) {
		return ErrNotDaemon
	}
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if !sandboxhttp.Proves(response.Header.Get(sandboxhttp.ProofHeader), d.Token, challenge) {
		return ErrNotDaemon
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("execd answers GET /ping with %d", response.StatusCode)
	}
	return nil
}
