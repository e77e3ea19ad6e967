package users_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"sandbox.internal/runtime/oci/users"
)

// folderVariable makes this program a service that makes namespaces, with its data in the folder that it names, until it is killed.
const folderVariable = "USERS_TEST_FOLDER"

func TestMain(m *testing.M) {
	if folder := os.Getenv(folderVariable); folder != "" {
		fmt.Fprintln(os.Stderr, makeNamespaces(folder))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func makeNamespaces(folder string) error {
	pool, err := users.Open(folder+"/claims", folder+"/data")
	if err != nil {
		return err
	}
	fmt.Println("ready")
	failed := make(chan error)
	for range 16 {
		go func() {
			for {
				if _, err := pool.Take(); err != nil {
					failed <- err
				}
			}
		}()
	}
	return <-failed
}

// TestKill: a service that is killed while it makes namespaces leaves no process, which would keep what it has open.
func TestKill(t *testing.T) {
	for round := range 100 {
		killService(t, round)
		if t.Failed() {
			return
		}
	}
}

func killService(t *testing.T, round int) {
	t.Helper()
	service := exec.Command("/proc/self/exe")
	service.Env = append(os.Environ(), folderVariable+"="+t.TempDir())
	// A pipe of its own: what the service leaves holds it open.
	output, input, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = output.Close() }()
	service.Stdout, service.Stderr = input, os.Stderr
	err = service.Start()
	_ = input.Close()
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(output)
	if line, err := lines.ReadString('\n'); err != nil {
		t.Errorf("the service wrote %q: %v", line, err)
	}
	<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond) // the moment is to be any
	_ = service.Process.Kill()
	_ = service.Wait()
	if err := output.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, lines); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("round %d: a process that the service has started has not ended", round)
	}
}
