package enforcer_test

import (
	"fmt"
	"testing"
	"time"

	"sandbox.internal/egress/enforcer"
)

func decisionAbout(target string) enforcer.Decision {
	return enforcer.Decision{Subject: enforcer.Subject{Kind: enforcer.KindName, Target: target}}
}

func TestTheSameIsCounted(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	log := enforcer.NewDecisionLog(func() time.Time { return now })
	log.Add(decisionAbout("a"))
	log.Add(decisionAbout("b"))
	_, more := log.After(0)
	now = now.Add(time.Minute)
	log.Add(decisionAbout("a"))
	select {
	case <-more:
	default:
		t.Error("a repetition was not announced")
	}
	all, _ := log.After(0)
	if len(all) != 2 || all[0].Target != "b" || all[1].Target != "a" || all[1].Count != 2 || all[1].Last.Sub(all[1].First) != time.Minute {
		t.Errorf("got %+v", all)
	}
	if later, _ := log.After(all[0].ID); len(later) != 1 || later[0].Target != "a" {
		t.Errorf("got %+v", later)
	}
	if none, _ := log.After(all[1].ID); len(none) != 0 {
		t.Errorf("got %+v", none)
	}
	// Ids of a log that starts later are larger.
	now = now.Add(time.Minute)
	next := enforcer.NewDecisionLog(func() time.Time { return now })
	next.Add(decisionAbout("c"))
	if fresh, _ := next.After(all[1].ID); len(fresh) != 1 {
		t.Errorf("got %+v", fresh)
	}
}

func TestTheOldestMakeRoom(t *testing.T) {
	log := enforcer.NewDecisionLog(time.Now)
	for i := range enforcer.DecisionLimit {
		log.Add(decisionAbout(fmt.Sprint(i)))
	}
	log.Add(decisionAbout("0")) // seen again
	log.Add(decisionAbout("new"))
	all, _ := log.After(0)
	if len(all) != enforcer.DecisionLimit || all[0].Target != "2" || all[len(all)-2].Target != "0" || all[len(all)-2].Count != 2 {
		t.Errorf("%d decisions, the first is %+v, the last but one %+v", len(all), all[0], all[len(all)-2])
	}
}
