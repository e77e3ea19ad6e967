package webhooks_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/server/webhooks"
	"sandbox.internal/test/loopback"
	"sandbox.internal/test/wait"
)

func TestNoRedirectIsFollowed(t *testing.T) {
	t.Parallel()
	other := newReceiver(t, nil)
	r := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		http.Redirect(w, q, other.URL, http.StatusTemporaryRedirect)
	})
	s := newService(t, hookOf("one", r)).start(t)
	s.add(state)
	s.paused(t)
	r.wantIDs(t, "evt_1", "evt_1")
	other.wantNone(t)
	s.wantLogged(t, 1, "the receiver answered 307 Temporary Redirect")
}

// TestPrivateAddresses: without allow_private no name leads to an address that is not public.
func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	_, port, err := net.SplitHostPort(r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{
		"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "169.254.169.254", "[fe80::1]", "10.1.2.3", "192.168.1.1", "[fd00::1]",
		"100.64.0.1", "[64:ff9b::7f00:1]",
	}
	for _, host := range hosts {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			hook := hookOf("one", r)
			hook.URL, hook.AllowPrivate = "http://"+host+":"+port+"/"+token, false
			s := newService(t, hook).start(t)
			s.add(state)
			s.paused(t)
			if !strings.Contains(s.logged(), syscall.EAFNOSUPPORT.Error()) { // no IPv6 here
				s.wantLogged(t, 1, "not a public address")
			}
		})
	}
	t.Cleanup(func() { r.wantNone(t) })
}

// TestNoProxy: a proxy of the environment would connect to what is refused here.
func TestNoProxy(t *testing.T) {
	proxy := newReceiver(t, nil)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		t.Setenv(name, "")
	}
	r := newReceiver(t, nil)
	hook := hookOf("one", r)
	// Requests to loopback addresses pass no proxy anyway.
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		if ip, _, err := net.ParseCIDR(address.String()); err == nil && ip.To4() != nil && !ip.IsLoopback() {
			listener, err := net.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
			if err != nil {
				t.Fatal(err)
			}
			server := &httptest.Server{Listener: listener, Config: r.Config}
			server.Start()
			t.Cleanup(server.Close)
			hook.URL = server.URL
			break
		}
	}
	s := newService(t, hook).start(t)
	s.add(state)
	r.wantIDs(t, "evt_1")
	proxy.wantNone(t)
}

// TestEndlessAnswers: a status is enough; what follows is bounded.
func TestEndlessAnswers(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 10)
	r := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		defer func() { ended <- struct{}{} }()
		chunk := make([]byte, 32<<10)
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	s := newService(t, hookOf("one", r))
	s.timeout = time.Hour // not what ends it
	s.start(t)
	s.add(state, stage)
	r.wantIDs(t, "evt_1", "evt_2")
	wait.For(t, "the end of the first answer", ended)
	wait.For(t, "the end of the second answer", ended)
	s.wantLogged(t, 0, failing)

	headers := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		for i := range 1000 {
			w.Header().Set(fmt.Sprintf("X-Header-%d", i), strings.Repeat("x", 100))
		}
	})
	s = newService(t, hookOf("one", headers)).start(t)
	s.add(state)
	s.paused(t)
	s.wantLogged(t, 1, failing)
}

// TestSilentReceiver: a try has a limit, which holds for the header and for the body.
func TestSilentReceiver(t *testing.T) {
	t.Parallel()
	silent := newReceiver(t, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })
	s := newService(t, hookOf("one", silent))
	s.timeout = 50 * time.Millisecond
	s.start(t)
	s.add(state)
	s.paused(t)
	s.wantLogged(t, 1, failing)

	unfinished := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done()
	})
	s = newService(t, hookOf("one", unfinished))
	s.timeout = time.Second
	s.start(t)
	s.add(state)
	wait.Until(t, "the event is delivered", func() bool {
		select {
		case <-s.pauses: // the machine was too slow for the header
		default:
		}
		return s.count("one true") == 1
	})
}

// TestSlowReceiver: it delays neither another webhook nor the end of the service.
func TestSlowReceiver(t *testing.T) {
	t.Parallel()
	slow := newReceiver(t, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })
	quick := newReceiver(t, nil)
	s := newService(t, hookOf("slow", slow), hookOf("quick", quick))
	s.timeout = time.Hour
	s.start(t)
	s.add(state)
	slow.wantIDs(t, "evt_1")
	for i := 2; i <= 300; i++ {
		s.add(stage)
	}
	quick.wantIDs(t, "evt_1")
	for i := 2; i <= 300; i++ {
		quick.wantIDs(t, fmt.Sprintf("evt_%d", i))
	}
	wait.Until(t, "the quick receiver has all", func() bool { return s.dispatcher.Oldest()["quick"] == 0 })
	if got, want := s.dispatcher.Oldest()["slow"], s.now.Sub(birth.Add(time.Second)); got != want {
		t.Errorf("the oldest undelivered event is %v old, want %v", got, want)
	}
	slow.wantNone(t)
	s.stop()
	if s.count("slow true") != 0 || s.count("slow false") != 0 {
		t.Errorf("a try that the end of the service has cut is counted: %v", s.tried)
	}
	s.wantLogged(t, 0, failing)
}

// TestGone: 410 ends the deliveries until the next start.
func TestGone(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, status(http.StatusGone))
	s := newService(t, hookOf("one", r)).start(t)
	s.add(state, stage)
	r.wantIDs(t, "evt_1")
	wait.Until(t, "the log says so", func() bool {
		return strings.Contains(s.logged(), "410 Gone: no deliveries until the service is restarted")
	})
	s.stop()
	r.wantNone(t)
	if s.dispatcher.Oldest()["one"] == 0 {
		t.Error("no event is undelivered")
	}
	s.start(t)
	r.wantIDs(t, "evt_1", "evt_2")
}

// TestUnreachableReceiver: the error has neither the path nor the query of the URL.
func TestUnreachableReceiver(t *testing.T) {
	t.Parallel()
	hook := webhooks.Webhook{Name: "one", URL: "http://" + loopback.Refusing(t) + "/" + token + "?key=" + token, Key: key, AllowPrivate: true}
	s := newService(t, hook).start(t)
	s.add(state)
	s.paused(t)
	s.wantLogged(t, 1, "connection refused")
}
