package keys_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// makerDir is the variable that turns the test binary into the process that TestKill kills.
const makerDir = "KEYS_TEST_MAKER_DIR"

// makeUntilKilled makes keys and replaces their secrets, and deletes every other one. It says so
// only after the ring has.
func makeUntilKilled(dir, kill string) error {
	records, err := store.Open(dir, zerolog.New(os.Stderr))
	if err != nil {
		return err
	}
	ctx := context.Background()
	ring, err := keys.New(ctx, keys.Options{Configured: []keys.Key{admin}, Store: records, Logger: zerolog.Nop()})
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s-%d", kill, i)
		_, secret, err := ring.Create(ctx, keys.Spec{Name: name, Role: lifecycle.RoleUser})
		if err != nil {
			return err
		}
		fmt.Println("created", name, secret)
		if _, secret, err = ring.Rotate(ctx, name, 0, time.Time{}); err != nil {
			return err
		}
		fmt.Println("rotated", name, secret)
		if i%2 == 1 {
			if err := ring.Delete(ctx, name); err != nil {
				return err
			}
			fmt.Println("deleted", name, secret)
		}
	}
}

// TestKill: after kill -9 each key is as the service last said, or one step further.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	moments := random.New(t)
	type state struct{ step, secret string }
	said := map[string]state{}
	for kill := range 5 {
		for _, line := range makeAndKill(t, dir, fmt.Sprint(kill), time.Duration(moments.Int64N(int64(80*time.Millisecond)))) {
			if words := strings.Fields(line); len(words) == 3 {
				said[words[1]] = state{words[0], words[2]}
			}
		}
	}
	ring, _ := openRing(t, dir, admin)
	for name, last := range said {
		_, err := ring.Get(name)
		switch valid := ring.Holds(last.secret); {
		case last.step == "deleted" && (err == nil || valid):
			t.Errorf("%s was deleted, and is there", name)
		case last.step == "rotated" && !valid && err == nil:
			t.Errorf("the secret of %s is lost", name)
		case last.step != "deleted" && err != nil && !strings.ContainsAny(name[len(name)-1:], "13579"): // the others may have been deleted
			t.Errorf("%s is lost after it was %s: %v", name, last.step, err)
		}
	}
}

// makeAndKill starts the process, kills it a while after its first key and returns what it said.
func makeAndKill(t *testing.T, dir, kill string, while time.Duration) (lines []string) {
	t.Helper()
	cmd := wait.Command(t, os.Args[0])
	cmd.Env = append(os.Environ(), makerDir+"="+dir+":"+kill)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killing := false
	for reader := bufio.NewReader(stdout); ; {
		line, err := reader.ReadString('\n')
		if err != nil {
			break // a line that the kill cut short says nothing
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
		if !killing {
			killing = true
			time.AfterFunc(while, func() { _ = cmd.Process.Kill() })
		}
	}
	_ = cmd.Wait() // it was killed
	if len(lines) == 0 {
		t.Fatalf("the process said nothing: %s", complaints.String())
	}
	return lines
}
