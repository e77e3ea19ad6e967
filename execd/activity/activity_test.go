package activity_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"sandbox.internal/execd/activity"
	"sandbox.internal/test/wait"
)

func began(log *activity.Log, text string) *activity.Operation {
	operation := log.Prepare(activity.Command, activity.Caller{Key: "ci", Client: "test"})
	operation.Begin("id", text)
	return operation
}

func texts(entries []activity.Entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, fmt.Sprintf("%s %s", e.Text, e.State))
	}
	return strings.Join(all, ", ")
}

func TestEntriesComeInTheOrderOfTheirChanges(t *testing.T) {
	t.Parallel()
	log := activity.New(time.Now)
	first, second := began(log, "one"), began(log, "two")
	all, cursor, changed := log.After(0)
	if got := texts(all); got != "one running, two running" {
		t.Errorf("at first: %s", got)
	}
	select {
	case <-changed:
		t.Error("the channel is closed without a change")
	default:
	}
	second.End(activity.Result{})
	first.End(activity.Result{Failed: true, Exit: new(2), Error: "exit status 2"})
	first.End(activity.Result{}) // does not count
	wait.For(t, "a change", changed)
	later, last, _ := log.After(cursor)
	if got := texts(later); got != "two succeeded, one failed" {
		t.Errorf("after the cursor: %s", got)
	}
	if e := later[1]; e.Exit == nil || *e.Exit != 2 || e.Error != "exit status 2" ||
		e.Ended.Before(e.Started) || e.ID != all[0].ID || e.Change != last {
		t.Errorf("the failed entry is %+v", e)
	}
	if rest, _, _ := log.After(last); len(rest) != 0 {
		t.Errorf("after the end: %s", texts(rest))
	}
	// A position of another process, whose clock was ahead.
	if again, _, _ := log.After(last + 1e12); len(again) != 2 {
		t.Errorf("after a position that is not known: %s", texts(again))
	}
}

func TestAnEndMayComeBeforeTheBegin(t *testing.T) {
	t.Parallel()
	log := activity.New(time.Now)
	operation := log.Prepare(activity.Code, activity.Caller{})
	operation.End(activity.Result{})
	if all, _, _ := log.After(0); len(all) != 0 {
		t.Errorf("before it began: %s", texts(all))
	}
	operation.Begin("x", "1+1")
	all, _, _ := log.After(0)
	if got := texts(all); got != "1+1 succeeded" || all[0].Started.After(all[0].Ended) {
		t.Errorf("got %s", got)
	}
}

func TestTheListIsBounded(t *testing.T) {
	t.Parallel()
	log := activity.New(time.Now)
	runs := began(log, "runs")
	for i := range 3000 {
		began(log, fmt.Sprint(i)).End(activity.Result{})
	}
	all, _, _ := log.After(0)
	if len(all) != 1000 || all[0].Text != "runs" || all[999].Text != "2999" {
		t.Errorf("%d entries, from %q to %q", len(all), all[0].Text, all[len(all)-1].Text)
	}
	runs.End(activity.Result{})
	large := strings.Repeat("x", 8<<10)
	var operations []*activity.Operation
	for range 1000 { // none of which has ended
		operations = append(operations, began(log, large))
	}
	all, _, _ = log.After(0)
	bytes := 0
	for _, e := range all {
		bytes += len(e.Text)
	}
	if bytes > 1<<20 || bytes < 1<<19 {
		t.Errorf("%d entries have %d bytes of text", len(all), bytes)
	}
	operations[0].End(activity.Result{}) // which is forgotten
	if again, _, _ := log.After(0); len(again) != len(all) {
		t.Errorf("a forgotten entry came back: %d entries after %d", len(again), len(all))
	}
}

func TestTextsAreShortUTF8(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"long":      strings.Repeat("x", 5000),
		"runes":     strings.Repeat("é", 3000) + "x",
		"odd runes": "x" + strings.Repeat("é", 3000),
		"bytes":     strings.Repeat("\xff", 5000),
		"few bytes": strings.Repeat("\xff\x00", 2000),
	} {
		log := activity.New(time.Now)
		operation := log.Prepare(activity.Command,
			activity.Caller{Key: "a\x1b[2Jb\n", Client: strings.Repeat("\u202e", 1000)})
		operation.Begin("", text)
		all, _, _ := log.After(0)
		if e := all[0]; len(e.Text) > 4096 || !utf8.ValidString(e.Text) || !e.Truncated ||
			e.Key != "a?[2Jb?" || e.Client != strings.Repeat("?", 128) {
			t.Errorf("%s: %d bytes, truncated %t, key %q, client %q", name, len(e.Text), e.Truncated,
				e.Key, e.Client)
		}
	}
}
