package oci

import (
	"errors"
	"os"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/network"
)

// TestContainerOfAnotherNetwork: a container that runs in another network than its own is not taken
// for started.
func TestContainerOfAnotherNetwork(t *testing.T) {
	own, err := process.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var info unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &info); err != nil {
		t.Fatal(err)
	}
	s := &start{
		launcher: &launcher{log: zerolog.Nop()}, container: &containers.Container{Name: "one"}, own: &network.Namespace{Inode: info.Ino},
	}
	running := keeper.Process{PID: own.PID, StartTime: own.Start}
	if err := s.checkNetwork(running); err != nil {
		t.Errorf("in its own network: %v", err)
	}
	s.own.Inode++
	if err := s.checkNetwork(running); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("in another network: %v", err)
	}
	running.StartTime++ // another process had the number
	if err := s.checkNetwork(running); err != nil {
		t.Errorf("of a process that has ended: %v", err)
	}
}
