package box

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"sandbox.internal/wire/sandboxhttp"

	"sandbox.internal/server/clock"
)

// errNotDaemon: the process that listens at the address is not the sandbox's execd.
var errNotDaemon = errors.New("process on execd's port does not have the sandbox's token")

// foreignPatience is for how long something else may answer in place of execd before its sandbox
// has failed. On the host's network the port may still be another sandbox's, which is on its end;
// execd's process 1 waits 5 s for that (execd/cmd/execd-init).
const foreignPatience = 10 * time.Second

// pinger asks sandboxes' daemons whether they answer.
type pinger struct{ client *http.Client }

func newPinger() *pinger {
	// A fresh connection for every question: a port may just have been taken over from another
	// sandbox.
	return &pinger{client: sandboxhttp.NewClient(sandboxhttp.Options{Timeout: 2 * time.Second})}
}

func (p *pinger) close() { p.client.CloseIdleConnections() }

// daemon is where an execd is to be asked, and the token that it holds.
type daemon struct {
	host  string
	port  int
	token string
}

// awaitAnswer pings again and again until execd answers; after atMost it stops and returns why it
// did not. A question that is under way by then is seen through: a sandbox with a hundredth of a
// core needs longer than that for an answer. began is when execd was asked first.
func (p *pinger) awaitAnswer(ctx context.Context, d daemon, began time.Time, atMost time.Duration) error {
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
// returns errNotDaemon for an answer without the proof.
func (p *pinger) ping(ctx context.Context, d daemon) error {
	url := "http://" + net.JoinHostPort(d.host, strconv.Itoa(d.port)) + "/ping"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	challenge := sandboxhttp.NewChallenge()
	request.Header.Set(sandboxhttp.ChallengeHeader, challenge)
	response, err := p.client.Do(request)
	if errors.Is(err, sandboxhttp.ErrNotHTTP) {
		return errNotDaemon
	}
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if !sandboxhttp.Proves(response.Header.Get(sandboxhttp.ProofHeader), d.token, challenge) {
		return errNotDaemon
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("execd answers GET /ping with %d", response.StatusCode)
	}
	return nil
}
