package conformance

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/test/wait"
)

// bootProgram runs the service as users do: the binary with a configuration file.
func (s *Service) bootProgram(t *testing.T) {
	t.Helper()
	words := append(slices.Clone(s.wrapper),
		Build(t, "sandbox.internal/server/cmd/sandbox-server"), "--config", s.File)
	command := exec.Command(words[0], words[1:]...)
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
	s.Stop = func() error {
		if err := command.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		return <-ended
	}
	s.PID = command.Process.Pid
	s.HUP = func() error { return command.Process.Signal(syscall.SIGHUP) }
	s.Kill = func() {
		_ = command.Process.Kill() // its only error is that the process has ended
		<-ended
		s.Stop, s.Kill = nil, nil
	}
	select {
	case found := <-address:
		s.URL = "http://" + found
	case err := <-ended:
		s.Stop, s.Kill = nil, nil
		t.Fatalf("the service ended: %v\n%s", err, s.Log.Tail(20))
	case <-time.After(wait.Patience()):
		s.Kill()
		t.Fatalf("the service does not listen\n%s", s.Log.Tail(20))
	}
}

// follow keeps the log and finds the address in it.
func (s *Service) follow(stderr io.Reader, address chan<- string) {
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		_, _ = s.Log.Write(append(lines.Bytes(), '\n')) // a journal takes every line
		var line struct{ Message, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Address != "" {
			select {
			case address <- line.Address:
			default:
			}
		}
	}
}
