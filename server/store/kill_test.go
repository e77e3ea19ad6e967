package store_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// writeUntilKilled is the child of TestKill. It says what it wrote only after the store said that
// it is durable, or written at least.
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
				r.Sandbox.Status.State = lifecycle.StatePaused
				if err := s.SaveUnsynced(context.Background(), r,
					event(r.Sandbox.ID, birth)); err != nil {
					return err
				}
				fmt.Println("unsynced", r.Sandbox.ID)
				kept := snapshot(r.Sandbox.ID)
				if err := s.InsertSnapshot(context.Background(), kept, nil,
					event(r.Sandbox.ID, birth)); err != nil {
					return err
				}
				fmt.Println("kept", r.Sandbox.ID)
				kept.Status.State, r.LastSnapshot = lifecycle.SnapshotReady, kept.ID
				if err := s.SaveSnapshot(context.Background(), kept, &r,
					event(r.Sandbox.ID, birth)); err != nil {
					return err
				}
				fmt.Println("ready", r.Sandbox.ID)
			}
		})
	}
	return group.Wait()
}

func TestKill(t *testing.T) {
	dir := t.TempDir()
	steps := []string{"inserted", "saved", "unsynced", "kept", "ready"} // each with an event
	states := []lifecycle.State{lifecycle.StatePending, lifecycle.StateRunning, lifecycle.StatePaused}
	reported := map[string]int{} // how many steps
	moments := random.New(t)
	const kills = 20
	for kill := range kills {
		after := steps[0]
		if kill == kills-1 {
			after = steps[4] // at least one record has all steps
		}
		for _, line := range runAndKill(t, dir, after, time.Duration(moments.Int64N(int64(80*time.Millisecond)))) {
			step, id, _ := strings.Cut(line, " ")
			reported[id] = slices.Index(steps, step) + 1
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
	snapshots := map[string]lifecycle.SnapshotState{}
	for _, kept := range loadSnapshots(t, s) {
		snapshots[kept.SandboxID] = kept.Status.State
	}
	last := 0
	for _, r := range load(t, s) {
		id, done := r.Sandbox.ID, slices.Index(states, r.Sandbox.Status.State)+1
		if state, kept := snapshots[id]; kept {
			done++
			if ready := state == lifecycle.SnapshotReady; ready != (r.LastSnapshot != "") {
				t.Fatalf("the snapshot of %s is %s, and its last snapshot %q", id, state, r.LastSnapshot)
			} else if ready {
				done++
			}
		}
		if rows[id] != done {
			t.Fatalf("%s is %s and has %d events", id, r.Sandbox.Status.State, rows[id])
		}
		if done < reported[id] {
			t.Errorf("%s is %s, but was %s", id, r.Sandbox.Status.State, steps[reported[id]-1])
		}
		if done == len(steps) {
			last++
		}
		delete(reported, id)
	}
	if len(reported) > 0 {
		t.Errorf("%d inserted records are lost", len(reported))
	}
	if last == 0 {
		t.Error("no record was written without a sync: this proves nothing")
	}
}

// runAndKill starts a writer, kills it a while after the first line that begins like that and
// returns its whole lines.
func runAndKill(t *testing.T, dir, first string, while time.Duration) []string {
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
	stuck := time.AfterFunc(wait.Patience(), func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	var lines []string
	killing := false
	for reader := bufio.NewReader(stdout); ; {
		line, err := reader.ReadString('\n')
		if err != nil {
			break // a line that the kill cut short says nothing
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
		if !killing && strings.HasPrefix(line, first) {
			killing = true
			time.AfterFunc(while, func() { _ = cmd.Process.Kill() })
		}
	}
	_ = cmd.Wait() // it was killed
	if len(lines) == 0 {
		t.Fatalf("the writer wrote nothing: %s", complaints.String())
	}
	return lines
}
