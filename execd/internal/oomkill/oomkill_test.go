package oomkill_test

import (
	"testing"

	"sandbox.internal/execd/internal/oomkill"
)

// kernel is the number that the kernel shows.
type kernel struct {
	kills int64
	shows bool
}

func (k *kernel) ledger() *oomkill.Ledger {
	return oomkill.New(func() (int64, bool) { return k.kills, k.shows })
}

func TestAKillIsClaimedOnce(t *testing.T) {
	k := &kernel{kills: 7, shows: true}
	l := k.ledger()
	first, second := l.Mark(), l.Mark()
	want(t, "before a kill", l.Claim(first), false)
	k.kills++
	want(t, "the process that was killed", l.Claim(first), true)
	want(t, "another one that lived then, and ended by another SIGKILL", l.Claim(second), false)
	k.kills++
	want(t, "the other one, after another kill", l.Claim(second), true)
}

func TestTwoKillsAreTwoClaims(t *testing.T) {
	k := &kernel{shows: true}
	l := k.ledger()
	first, second := l.Mark(), l.Mark()
	k.kills = 2
	want(t, "the first process", l.Claim(first), true)
	want(t, "the second process", l.Claim(second), true)
	want(t, "a third claim", l.Claim(second), false)
}

func TestAKillBeforeTheStartIsNotClaimed(t *testing.T) {
	k := &kernel{shows: true}
	l := k.ledger()
	old := l.Mark()
	k.kills = 1
	young := l.Mark()
	k.kills = 2
	want(t, "the old process", l.Claim(old), true) // the newest kill
	want(t, "the young process, whose only kill is taken", l.Claim(young), false)
	want(t, "another old process", l.Claim(old), true)
}

func TestNothingIsClaimedWhereTheNumberIsNotShown(t *testing.T) {
	k := &kernel{kills: 1}
	l := k.ledger()
	before := l.Mark()
	k.kills, k.shows = 2, true
	want(t, "not shown at the start", l.Claim(before), false)
	before = l.Mark()
	k.kills, k.shows = 3, false
	want(t, "not shown at the end", l.Claim(before), false)
	var none *oomkill.Ledger
	want(t, "no ledger", none.Claim(none.Mark()), false)
}

// TestWhatIsRememberedIsBounded: kills that were claimed long ago can be claimed by no one else,
// although they are forgotten.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	k := &kernel{shows: true}
	l := k.ledger()
	old := l.Mark()
	const many = 1000
	for range many {
		before := l.Mark()
		k.kills++
		want(t, "a process that was killed", l.Claim(before), true)
	}
	want(t, "an old process", l.Claim(old), false)
}

func want(t *testing.T, what string, got, want bool) {
	t.Helper()
	if got != want {
		t.Errorf("%s: Claim is %t, want %t", what, got, want)
	}
}
