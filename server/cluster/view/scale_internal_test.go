package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

func tableEntry(number int, version uint64, owner string, state lifecycle.State) *Entry {
	id := strconv.Itoa(number)
	return &Entry{
		Version: version, Batch: &v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Name: id, UID: types.UID(id)}}, tokens: new(tokens),
		Sandbox: lifecycle.Sandbox{ID: id, Owner: owner, CreatedAt: time.Unix(int64(number/2), 0), Status: lifecycle.Status{State: state}},
	}
}

// TestTableCounts compares pages and counts with a look at every sandbox, whatever comes and goes.
func TestTableCounts(t *testing.T) {
	states := []lifecycle.State{lifecycle.StatePending, lifecycle.StateRunning, lifecycle.StateTerminated}
	rapid.Check(t, func(t *rapid.T) {
		table, version := newTable(), uint64(0)
		for range rapid.IntRange(0, 60).Draw(t, "changes") {
			number := rapid.IntRange(0, 15).Draw(t, "number")
			version++
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				table.remove(strconv.Itoa(number), version, time.Unix(int64(version), 0))
			} else {
				table.put(tableEntry(number, version, strconv.Itoa(number%3), rapid.SampledFrom(states).Draw(t, "state")))
			}
		}
		all := table.all()
		if len(all) != len(table.entries) || !slices.IsSortedFunc(all, func(a, b *Entry) int { return oldestFirst(b, a) }) {
			t.Fatalf("%d sandboxes of %d, or in the wrong order", len(all), len(table.entries))
		}
		filter := lifecycle.Filter{States: rapid.SliceOfNDistinct(rapid.SampledFrom(states), 0, 3, func(s lifecycle.State) lifecycle.State { return s }).Draw(t, "states")}
		if owner := rapid.SampledFrom([]string{"", "0", "1", "9"}).Draw(t, "owner"); owner != "" {
			filter.Owner = &owner
		}
		page := lifecycle.Page{Number: rapid.IntRange(1, 4).Draw(t, "page"), Size: rapid.IntRange(1, 5).Draw(t, "size")}
		var want []*Entry
		total := 0
		for _, e := range all {
			if filter.Match(&e.Sandbox) {
				if total/page.Size == page.Number-1 {
					want = append(want, e)
				}
				total++
			}
		}
		if items, n := table.list(&filter, page); n != total || !slices.Equal(items, want) {
			t.Fatalf("%d sandboxes of %d, want %d of %d", len(items), n, len(want), total)
		}
	})
}

// cheapest returns the least time of several runs.
func cheapest(runs int, run func()) time.Duration {
	least := time.Hour
	for range runs {
		began := time.Now()
		run()
		least = min(least, time.Since(began))
	}
	return least
}

// TestTableDoesNotSlowDown: a page, a count and a removal cost with 10 000 sandboxes about what
// they cost with 1000.
func TestTableDoesNotSlowDown(t *testing.T) {
	const few, many, allowed = 1000, 10_000, 2 // a busy machine takes its share; without an index it is ten times and more
	now := time.Now()
	filled := func(n int) *table {
		table := newTable()
		for i := range n {
			table.put(tableEntry(i, uint64(i+1), strconv.Itoa(i%7), lifecycle.StateRunning))
		}
		return table
	}
	owner := "3"
	for name, work := range map[string]func(table *table){
		"list":           func(table *table) { table.list(&lifecycle.Filter{}, lifecycle.Page{Number: 1, Size: 20}) },
		"list of a user": func(table *table) { table.list(&lifecycle.Filter{Owner: &owner}, lifecycle.Page{Number: 1, Size: 20}) },
		"list by state": func(table *table) {
			table.list(&lifecycle.Filter{States: []lifecycle.State{lifecycle.StateRunning}}, lifecycle.Page{Number: 1, Size: 20})
		},
		"count": func(table *table) { (&View{table: table}).Living("3") },
		"removal": func(table *table) {
			for i := range 100 {
				id := fmt.Sprint("gone-", i)
				table.remove(id, 1, now)
			}
		},
	} {
		small, large := filled(few), filled(many)
		for i := range many { // what was removed is remembered for a while
			large.remove(fmt.Sprint("before-", i), 1, now)
		}
		one, ten := cheapest(200, func() { work(small) }), cheapest(200, func() { work(large) })
		if ten > allowed*max(one, time.Microsecond) {
			t.Errorf("%s: %v with %d sandboxes, %v with %d", name, one, few, ten, many)
		}
	}
}

// TestEventsOfAMinute: of 300 creates a second, the events of the last minute are there.
func TestEventsOfAMinute(t *testing.T) {
	j := newJournal()
	j.begin(1, map[string]*Entry{})
	version := uint64(1)
	for number := range 300 * 90 {
		for _, state := range []lifecycle.State{lifecycle.StatePending, lifecycle.StateRunning} {
			version++
			e := tableEntry(number, version, "owner", state)
			e.Sandbox.Status.Message = "the sandbox runs, or is on its way"
			e.Sandbox.Reach(lifecycle.StageAccepted, e.Sandbox.CreatedAt)
			if state == lifecycle.StateRunning {
				e.Sandbox.Reach(lifecycle.StageReady, e.Sandbox.CreatedAt)
			}
			j.take(e, false, time.Now())
		}
	}
	if minute := int64(version-2*300*60) << placeBits; j.floor > minute {
		t.Errorf("events up to %d are forgotten, and those from %d on are of the last minute", j.floor, minute)
	}
}

// slowSecrets is an API server that takes a while for each Secret.
type slowSecrets struct {
	secrets
	pause         time.Duration
	reading, most atomic.Int64
}

func (s *slowSecrets) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	for now := s.reading.Add(1); ; {
		most := s.most.Load()
		if now <= most || s.most.CompareAndSwap(most, now) {
			break
		}
	}
	defer s.reading.Add(-1)
	timer := time.NewTimer(s.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return errors.Join(ctx.Err())
	}
	return s.secrets.Get(ctx, key, object, options...)
}

// TestSecretsAreReadAtOnce: an ingress that starts among many sandboxes does not read their Secrets
// one after another.
func TestSecretsAreReadAtOnce(t *testing.T) {
	api, table := &slowSecrets{pause: 10 * time.Millisecond}, &rows{}
	r := &routes{ctx: t.Context(), table: table, api: api, logger: zerolog.Nop(), known: make(map[types.UID]*tokens), unread: make(map[types.UID]*Entry)}
	listed := make(map[string]*Entry)
	for i := range 320 {
		e := tableEntry(i, 1, "", lifecycle.StateRunning)
		e.Batch.Annotations = map[string]string{AnnotationSecret: e.Batch.Name}
		e.Batch.Status.Addresses = []string{"192.0.2.1"}
		listed[e.Batch.Name] = e
	}
	r.replace(listed, 1)
	for id := range listed {
		if table.token(id) == "" {
			t.Fatalf("sandbox %s has no token once the table is there", id)
		}
	}
	if most := api.most.Load(); most != parallelReads {
		t.Errorf("%d Secrets are read at once, want %d", most, parallelReads)
	}
}
