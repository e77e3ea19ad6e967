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

// until asks again and again until execd answers; after atMost it stops asking and returns why it did not. A question that is
// under way by then is seen through: a sandbox with a hundredth of a core needs longer than that for an answer.
func (p *prober) until(ctx context.Context, host string, port int, atMost time.Duration) error {
	window, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		err := p.ask(ctx, host, port)
		if err == nil || !sleep(window, 2*time.Millisecond) {
			return err
		}
	}
}

func (p *prober) ask(ctx context.Context, host string, port int) error {
	url := "http://" + net.JoinHostPort(host, strconv.Itoa(port)) + "/ping"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
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
