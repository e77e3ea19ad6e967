package holds_test

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/execd/internal/holds"
)

func TestKeepAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holds.New(holds.Options{})
		s := follow(t, r, time.Second)
		defer s.stop()
		pass(time.Second)
		until, err := r.KeepAwake("poller", time.Minute)
		must(t, err)
		if want := time.Now().Add(time.Minute); !until.Equal(want) {
			t.Errorf("awake until %v, want %v", until, want)
		}
		pass(30 * time.Second)
		_, err = r.KeepAwake("poller", 40*time.Second) // takes its place
		must(t, err)
		_, err = r.KeepAwake("", time.Second)
		must(t, err)
		if got := r.Report().Held; len(got) != 2 || got[0].ID != "poller" || got[1].ID != "" || got[0].Kind != holds.KeepAwake {
			t.Errorf("listed is %+v", got)
		}
		pass(time.Minute)
		s.expect(t, "1s idle", "1s busy keepAwake", "1m12s idle")

		for i := range 100 {
			_, err := r.KeepAwake(strconv.Itoa(i), time.Hour)
			must(t, err)
		}
		for _, name := range []string{"", "another"} {
			if _, err := r.KeepAwake(name, time.Hour); !errors.Is(err, holds.ErrTooMany) {
				t.Errorf("more than a hundred, the last with the name %q: %v", name, err)
			}
		}
		if _, err := r.KeepAwake("7", time.Second); err != nil {
			t.Errorf("with a name that is used: %v", err)
		}
		if got := len(r.Report().Held); got != 100 {
			t.Errorf("%d are listed", got)
		}
		pass(time.Second)
		if _, err := r.KeepAwake("another", time.Hour); err != nil {
			t.Errorf("after the end of one: %v", err)
		}
		pass(2 * time.Hour)
		if got := r.Report(); len(got.Held) != 0 {
			t.Errorf("in the end %+v are listed", got.Held)
		}
	})
}

func TestWakeAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holds.New(holds.Options{})
		s := follow(t, r, time.Second)
		defer s.stop()
		began := time.Now()
		wake := func(name string, after time.Duration) {
			t.Helper()
			at, err := r.WakeAfter(name, after)
			if want := time.Now().Add(after); err != nil || !at.Equal(want) {
				t.Errorf("woken at %v, %v, want %v", at, err, want)
			}
		}
		wake("", time.Minute)
		wake("a", 2*time.Second)
		wake("a", 2*time.Minute) // takes its place
		pass(time.Second)
		s.expect(t, "1s idle until 1m0s")
		if got := r.Report().WakeAt; !got.Equal(began.Add(time.Minute)) {
			t.Errorf("the sandbox is to be woken at %v", got)
		}
		pass(time.Minute)
		r.Begin(holds.Request, "").End()
		pass(time.Second)
		s.expect(t, "1m1s busy request", "1m2s idle until 2m0s")
		pass(time.Hour)
		if got := r.Report().WakeAt; !got.IsZero() {
			t.Errorf("the sandbox is to be woken at %v, which is over", got)
		}
		for range 100 {
			wake("", time.Second)
		}
		if _, err := r.WakeAfter("b", time.Second); !errors.Is(err, holds.ErrTooMany) {
			t.Errorf("more than a hundred: %v", err)
		}
		pass(time.Second)
		wake("b", time.Second)
	})
}
