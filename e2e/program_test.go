package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// bootProgram runs the service as users do: the binary with a configuration file.
func (s *service) bootProgram(t *testing.T) {
	t.Helper()
	command := exec.Command(programs.build(t, "../server/cmd/sandbox-server"), "--config", s.file)
	command.Env = os.Environ()
	for name, value := range s.env {
		command.Env = append(command.Env, name+"="+value)
	}
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	address, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		s.follow(stderr, address)
		ended <- command.Wait()
	}()
	s.stop = func() error {
		if err := command.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		return <-ended
	}
	s.hup = func() error { return command.Process.Signal(syscall.SIGHUP) }
	s.kill = func() {
		_ = command.Process.Kill() // its only error is that the process has ended
		<-ended
		s.stop, s.kill = nil, nil
	}
	select {
	case found := <-address:
		s.url = "http://" + found
	case err := <-ended:
		s.stop, s.kill = nil, nil
		t.Fatalf("the service ended: %v\n%s", err, s.log.tail(20))
	case <-time.After(patience):
		s.kill()
		t.Fatalf("the service does not listen\n%s", s.log.tail(20))
	}
}

// follow keeps the log and finds the address in it.
func (s *service) follow(stderr io.Reader, address chan<- string) {
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		_, _ = s.log.Write(append(lines.Bytes(), '\n')) // a journal takes every line
		var line struct{ Message, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Address != "" {
			select {
			case address <- line.Address:
			default:
			}
		}
	}
}

// bootUntil runs the service until ctx ends, and kills it then, wherever in its start it is.
func (s *service) bootUntil(ctx context.Context, t *testing.T) {
	t.Helper()
	command := exec.CommandContext(ctx, programs.build(t, "../server/cmd/sandbox-server"), "--config", s.file)
	if err := command.Start(); err != nil {
		t.Error(err)
		return
	}
	_ = command.Wait() // killed
}
