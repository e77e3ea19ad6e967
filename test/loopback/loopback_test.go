package loopback_test

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"sandbox.internal/test/loopback"
)

func TestRefusing(t *testing.T) {
	t.Parallel()
	address := loopback.Refusing(t)
	if c, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connection %v, %v", c, err)
	}
	if l, err := net.Listen("tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listener %v, %v", l, err)
	}
}

func TestFree(t *testing.T) {
	t.Parallel()
	given := map[int]bool{}
	for range 20 {
		number := loopback.Port(t)
		if given[number] {
			t.Errorf("port %d twice", number)
		}
		given[number] = true
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", number))
		if err != nil {
			t.Fatal(err)
		}
		_ = listener.Close()
	}
}
