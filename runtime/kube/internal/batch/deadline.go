package batch

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// deadline is the earliest time at which a batch must be looked at again.
type deadline struct{ time time.Time }

func (d *deadline) at(t time.Time) {
	if d.time.IsZero() || t.Before(d.time) {
		d.time = t
	}
}

func (d *deadline) in(now time.Time, wait time.Duration) { d.at(now.Add(wait)) }

func (d *deadline) result(now time.Time) reconcile.Result {
	if d.time.IsZero() {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: min(max(d.time.Sub(now), time.Millisecond), clockInterval)}
}
