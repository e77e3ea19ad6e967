package app_test

import (
	"errors"
	"net/http"
	"syscall"
	"testing"

	gen "sandbox.internal/gen/egress"
	"sandbox.internal/test/wait"
)

// TestRootCannotChangeTheNameServers: an egress daemon that is started again asks those that its
// network was made with, although root in the sandbox has written others into the file that both
// share.
func TestRootCannotChangeTheNameServers(t *testing.T) {
	s := launch(t, fewNames, func(o *outside) []string { return []string{"--network", "bridge", "--dns", o.dns.Addr().String()} })
	s.passes(t, fetch("http://web1.test:$port1/"), "this is web1")
	s.passes(t, "echo nameserver $rogueip > /etc/resolv.conf && cat /etc/resolv.conf", s.rogue.Addr().String())
	for restarts := range 2 {
		_, daemon := s.processes(t)
		if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wait.Succeeds(t, "the egress daemon is back", func() error {
			var health gen.Health
			if err := s.call(t, http.MethodGet, "/healthz", "", &health); err != nil {
				return err
			}
			if health.Restarts <= restarts {
				return errors.New("the egress daemon has not been restarted")
			}
			return nil
		})
		s.passes(t, "getent ahostsv4 x.wild.test", s.web1.Addr().String())
		s.fails(t, "getent ahostsv4 echo.test | grep $web2ip")
		s.fails(t, fetch("http://$web2ip:$port2/"))
		if n := s.asked.Load(); n != 0 {
			t.Fatalf("after %d restarts: the name server that root has written into resolv.conf was asked %d times", restarts+1, n)
		}
	}
}
