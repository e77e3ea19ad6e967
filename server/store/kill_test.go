package store_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

// writeUntilKilled is the child of TestKill. It says what it wrote only after the store said that
// it is durable.
func writeUntilKilled(dir string) error {
	s, err := store.Open(dir, zerolog.New(os.Stderr))
	if err != nil {
		return err
	}
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			for {
				r := record(uuid.NewString())
				if err := s.Insert(context.Background(), r, nil,
					event(r.Sandbox.ID, birth)); err != nil {
					return err
				}
				fmt.Println("inserted", r.Sandbox.ID)
				r.Sandbox.Status.State = lifecycle.StateRunning
				if err := s.Save(context.Background(), r, event(r.Sandbox.ID, birth)); err != nil {
					return err
				}
				fmt.Println("saved", r.Sandbox.ID)
			}
		})
	}
	return group.Wait()
}

func TestKill(t *testing.T) {
	dir := t.TempDir()
	inserted, saved := make(map[string]bool), make(map[string]bool)
	for range 20 {
		for _, line := range runAndKill(t, dir) {
			switch word, id, _ := strings.Cut(line, " "); word {
			case "inserted":
				inserted[id] = true
			case "saved":
				saved[id] = true
			}
		}
	}
	s := open(t, dir)
	rows := map[string]int{}
	all := page(t, s, lifecycle.EventQuery{})
	for i, e := range all.Events {
		rows[e.SandboxID]++
		if e.Sequence != all.Oldest+int64(i) {
			t.Fatalf("event %d has the sequence %d, the first has %d", i, e.Sequence, all.Oldest)
		}
	}
	for _, r := range load(t, s) {
		want := 1
		if r.Sandbox.Status.State == lifecycle.StateRunning {
			want = 2
		}
		if rows[r.Sandbox.ID] != want {
			t.Fatalf("%s is %s and has %d events", r.Sandbox.ID, r.Sandbox.Status.State,
				rows[r.Sandbox.ID])
		}
		delete(inserted, r.Sandbox.ID)
		if r.Sandbox.Status.State == lifecycle.StateRunning {
			delete(saved, r.Sandbox.ID)
		}
	}
	if len(inserted) > 0 || len(saved) > 0 {
		t.Errorf("%d inserted and %d saved records are lost", len(inserted), len(saved))
	}
}

// runAndKill starts a writer, kills it at a random moment after its first line and returns its
// whole lines.
func runAndKill(t *testing.T, dir string) []string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writerDir+"="+dir)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	var lines []string
	for reader := bufio.NewReader(stdout); ; {
		line, err := reader.ReadString('\n')
		if err != nil {
			break // a line that the kill cut short says nothing
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
		if len(lines) == 1 {
			time.AfterFunc(rand.N(80*time.Millisecond), func() { _ = cmd.Process.Kill() })
		}
	}
	_ = cmd.Wait() // it was killed
	if len(lines) == 0 {
		t.Fatalf("the writer wrote nothing: %s", complaints.String())
	}
	return lines
}
