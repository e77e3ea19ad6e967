package host

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// prober asks sandboxes' daemons whether they answer.
type prober struct{ client *http.Client }

func newProber() *prober {
	// A fresh connection for every question: a port may just have been taken over from another sandbox.
	transport := &http.Transport{DisableKeepAlives: true, Proxy: nil}
	return &prober{client: &http.Client{Transport: transport, Timeout: 2 * time.Second}}
}

func (p *prober) close() { p.client.CloseIdleConnections() }

// daemon is where an execd is to be asked. With a token the question is one that only the execd with that token answers, and without
// one it is whether any answers.
type daemon struct {
	host  string
	port  int
	token string
}

// until asks again and again until execd answers; after atMost it stops asking and returns why it did not. A question that is
// under way by then is seen through: a sandbox with a hundredth of a core needs longer than that for an answer. began is when execd was
// asked first.
func (p *prober) until(ctx context.Context, d daemon, began time.Time, atMost time.Duration) error {
	window, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		err := p.ask(ctx, d)
		if err == nil || !sleep(window, askAgain(time.Since(began))) {
			return err
		}
	}
}

// askAgain is the pause before the next question to an execd that has not answered for so long. On a quiet machine it answers after some
// 20 ms, and asking often finds it soon. Where it takes longer the processors are busy, with starting execd among other things, and each
// question takes from that: it costs a connection to the engine's proxy and one from there into the sandbox. So the pause is a tenth of
// what has been waited, and delays no answer by more.
func askAgain(waited time.Duration) time.Duration {
	return min(max(2*time.Millisecond, waited/10), 50*time.Millisecond)
}

func (p *prober) ask(ctx context.Context, d daemon) error {
	path := "/ping"
	if d.token != "" {
		path = "/metrics"
	}
	url := "http://" + net.JoinHostPort(d.host, strconv.Itoa(d.port)) + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if d.token != "" {
		request.Header.Set(tokenHeader, d.token)
	}
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return nil
}
