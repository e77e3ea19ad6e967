package host

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sandbox.internal/server/lifecycle"
)

// TestListingsAgreeWithThePlainRule: whatever happened to the sandboxes, the registry lists what a
// look at every record would.
func TestListingsAgreeWithThePlainRule(t *testing.T) {
	states := []lifecycle.State{lifecycle.StatePending, lifecycle.StateRunning, lifecycle.StatePaused, lifecycle.StateFailed}
	rapid.Check(t, func(t *rapid.T) {
		h := &Host{registry: newRegistry()}
		metadata := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"1", "2"}), 0, 3)
		owner := rapid.SampledFrom([]string{"", "x", "y"})
		var living []*actor
		count := 0
		draw := func(id string, created time.Time) *lifecycle.Record {
			record := &lifecycle.Record{}
			record.Sandbox.ID, record.Sandbox.CreatedAt = id, created
			record.Sandbox.Metadata = metadata.Draw(t, "metadata")
			record.Sandbox.Owner = owner.Draw(t, "owner")
			record.Sandbox.Status.State = rapid.SampledFrom(states).Draw(t, "state")
			return record
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				count++
				// Several at the same moment: ties are by id.
				a := &actor{host: h, id: fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "first digit"), count), createdAt: time.Unix(int64(count/3), 0)}
				h.registry.publish(a, draw(a.id, a.createdAt))
				h.registry.add(a)
				living = append(living, a)
			},
			"change": func(t *rapid.T) {
				if len(living) > 0 {
					a := rapid.SampledFrom(living).Draw(t, "which")
					h.registry.publish(a, draw(a.id, a.createdAt))
				}
			},
			"remove": func(t *rapid.T) {
				if len(living) > 0 {
					at := rapid.IntRange(0, len(living)-1).Draw(t, "which")
					h.registry.remove(living[at])
					living = slices.Delete(living, at, at+1)
				}
			},
			"": func(t *rapid.T) {
				filter := lifecycle.Filter{
					States:   rapid.SliceOfN(rapid.SampledFrom(states), 0, 2).Draw(t, "states"),
					Metadata: metadata.Draw(t, "asked for"),
				}
				if rapid.Bool().Draw(t, "of one owner") {
					filter.Owner = new(owner.Draw(t, "whose"))
				}
				page := lifecycle.Page{Number: rapid.IntRange(1, 3).Draw(t, "page"), Size: rapid.IntRange(1, 4).Draw(t, "size")}
				got, err := h.List(t.Context(), filter, page)
				if err != nil {
					t.Fatal(err)
				}
				var want []string
				for _, a := range slices.SortedFunc(slices.Values(living), func(a, b *actor) int { return order(b, a) }) {
					if filter.Match(&a.snapshot().Sandbox) {
						want = append(want, a.id)
					}
				}
				total := len(want)
				want = want[min(total, (page.Number-1)*page.Size):min(total, page.Number*page.Size)]
				var ids []string
				for _, sandbox := range got.Items {
					ids = append(ids, sandbox.ID)
				}
				if got.Total != total || !slices.Equal(ids, want) {
					t.Fatalf("listed %q of %d, want %q of %d", ids, got.Total, want, total)
				}
			},
		})
	})
}

func BenchmarkListOfTwentyAmongTenThousand(b *testing.B) {
	h := &Host{registry: newRegistry()}
	h.registry.actors, h.registry.tagged = map[string]*actor{}, map[tag]map[*actor]struct{}{}
	for i := range 10_000 {
		a := &actor{host: h, id: fmt.Sprint(i), createdAt: time.Unix(int64(i), 0)}
		record := &lifecycle.Record{}
		record.Sandbox.Status.State = lifecycle.StateRunning
		record.Sandbox.Metadata = map[string]string{"number": fmt.Sprint(i), "tagged": fmt.Sprint(i < 20)}
		h.registry.publish(a, record)
		h.registry.add(a)
	}
	for name, filter := range map[string]lifecycle.Filter{
		"metadata and state": {States: []lifecycle.State{lifecycle.StateRunning}, Metadata: map[string]string{"tagged": "true"}},
		"state":              {States: []lifecycle.State{lifecycle.StateRunning}},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := h.List(b.Context(), filter, lifecycle.Page{Number: 1, Size: 20}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
