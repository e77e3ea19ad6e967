package images_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

// guest is a context of a caller that is no administrator, with a bound.
func guest(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	t.Cleanup(cancel)
	return engine.WithCaller(ctx, engine.Caller{Name: "guest", Guest: true})
}

// TestGuestAsksNoInternalHost: whatever the name of an image says, no address of this machine's
// networks is connected to, and the refusal is the same for an open port and a closed one.
func TestGuestAsksNoInternalHost(t *testing.T) {
	withoutConfig(t)
	var connections atomic.Int64
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = conn.Close()
		}
	}()
	_, opened, _ := net.SplitHostPort(listener.Addr().String())
	s := open(t, images.Options{})
	for _, host := range []string{
		"127.0.0.1:" + opened, "127.0.0.1:1", "localhost:" + opened, "a.localhost:" + opened, "[::1]:" + opened, "127.1:" + opened, "2130706433:" + opened,
		"0x7f000001:" + opened, "0.0.0.0:" + opened, "10.0.0.1", "169.254.169.254", "192.168.0.1:80", "100.100.100.200", "[fd00::1]:443", "[::ffff:127.0.0.1]:" + opened,
		"[64:ff9b::7f00:1]:" + opened,
	} {
		for what, err := range map[string]error{
			"pull":  func() error { _, err := s.Ensure(guest(t), host+"/a:1", good, nil); return err }(),
			"prove": s.Prove(guest(t), host+"/a:1", good),
		} {
			wantImageError(t, err, "")
			if text := err.Error(); strings.Contains(text, "refused") || strings.Contains(text, "timeout") || strings.Contains(text, "EOF") {
				t.Errorf("%s of %s: %v", what, host, err)
			}
		}
	}
	if n := connections.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
}

// TestGuestListed: a registry that is listed can be had from, and leads to nothing else.
func TestGuestListed(t *testing.T) {
	withoutConfig(t)
	r, victim := newRegistry(t), newRegistry(t)
	ref := r.push(t, "listed:1", newImage(t, v1.Config{}, randomLayer(t, 100)))
	r.private()
	s := open(t, images.Options{Internal: []string{r.host}})
	if err := s.Prove(guest(t), ref, good); err != nil {
		t.Error(err)
	}
	wantImageError(t, s.Prove(guest(t), ref, nil), "401")
	wantImageError(t, s.Prove(guest(t), r.host+"/missing:1", good), "404")
	if _, err := s.Ensure(guest(t), ref, good, nil); err != nil {
		t.Error(err)
	}
	var asked atomic.Int64
	victim.intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"access_token":"secret"}`))
		return true
	})
	for name, lead := range map[string]func(w http.ResponseWriter, req *http.Request){
		"token": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/latest/credentials",service="s"`, victim.host))
			w.WriteHeader(http.StatusUnauthorized)
		},
		"redirect": func(w http.ResponseWriter, req *http.Request) {
			if strings.Contains(req.URL.Path, "/manifests/") {
				http.Redirect(w, req, "http://"+victim.host+"/admin?do=something", http.StatusFound)
			}
		},
	} {
		r.intercept(func(w http.ResponseWriter, req *http.Request) bool { lead(w, req); return true })
		for caller, ctx := range map[string]context.Context{"guest": guest(t), "administrator": t.Context()} {
			_, err := s.Ensure(ctx, r.host+"/other:1", nil, nil)
			wantImageError(t, err, map[string]string{"token": "realm host", "redirect": "leads to " + victim.host}[name])
			if n := asked.Load(); n != 0 {
				t.Errorf("%s by %s: the other host was asked %d times", name, caller, n)
			}
		}
	}
}

// TestNever: an address that is never a registry is not connected to, listed or not.
func TestNever(t *testing.T) {
	withoutConfig(t)
	r := newRegistry(t)
	ref := r.push(t, "never:1", newImage(t, v1.Config{}, randomLayer(t, 100)))
	published := must(netip.ParseAddrPort(r.host))(t)
	s := open(t, images.Options{Internal: []string{r.host}, Never: func(address netip.AddrPort, listed bool) bool {
		if !listed {
			t.Errorf("%s is listed", address)
		}
		return address == published
	}})
	for _, ctx := range []context.Context{guest(t), t.Context()} {
		_, err := s.Ensure(ctx, ref, nil, nil)
		wantImageError(t, err, "never a registry")
	}
}
