package host_test

import (
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestEndedSandboxesAreBounded: a key that creates and deletes has its own oldest records forgotten
// before their time, and no other key's; also by a host that is started again with less room.
func TestEndedSandboxesAreBounded(t *testing.T) {
	const (
		each = 25 << 10 // of one with this metadata, about
		room = 10
	)
	m := newMachine(t)
	m.options.EndedBudget = room * each
	m.start()
	end := func(owner string) string {
		t.Helper()
		s := spec()
		s.Metadata = map[string]string{"a": strings.Repeat("x", 4<<10), "b": strings.Repeat("x", 4<<10)}
		created, err := m.host.Create(t.Context(), s, lifecycle.CreateOptions{Owner: owner, MaxSandboxes: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.host.Delete(t.Context(), created.ID); err != nil {
			t.Fatal(err)
		}
		m.await(created.ID, lifecycle.StateTerminated)
		return created.ID
	}
	modest := end("modest")
	var greedy []string
	for range 4 * room {
		greedy = append(greedy, end("greedy"))
	}
	kept := func(atLeast, atMost int) {
		t.Helper()
		count := 0
		wait.Until(t, "the oldest records of the key that has the most are forgotten", func() bool {
			count = 0
			for _, id := range greedy {
				if _, err := m.host.Get(t.Context(), id); err == nil {
					count++
				}
			}
			return count >= atLeast && count <= atMost
		}, func() any { return count })
		if _, err := m.host.Get(t.Context(), modest); err != nil {
			t.Errorf("the record of another key: %v", err)
		}
		if _, err := m.host.Get(t.Context(), greedy[len(greedy)-1]); err != nil {
			t.Errorf("the newest record: %v", err)
		}
		if _, err := m.host.Get(t.Context(), greedy[0]); kindOf(err) != lifecycle.KindNotFound {
			t.Errorf("the oldest record: %v", err)
		}
	}
	kept(room/2, room)
	m.host.Close()
	m.options.EndedBudget = room / 2 * each
	m.start()
	kept(1, room/2)
	if again := end("greedy"); again == "" {
		t.Error("there is no room for another one")
	}
}
