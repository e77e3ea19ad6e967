package holds

import (
	"errors"
	"slices"
	"time"
)

// maxAsked is how many holds there may be that were asked for, and how many times to wake at.
const maxAsked = 100

// ErrTooMany is the error of what is asked for when there are as many already as there may be.
var ErrTooMany = errors.New("as many programs have asked to be kept awake, or to be woken, as may: " +
	"wait until one of their times is over, or ask under a name that was used")

// kept is a hold that was asked for. The timer ends it.
type kept struct {
	name  string // empty for none
	hold  *Hold
	timer *time.Timer // set once it is listed
}

// wake is a time to wake the sandbox at.
type wake struct {
	name string // empty for none
	at   time.Time
}

// KeepAwake takes a hold that ends by itself after a time, and returns when it will. It takes the
// place of the one that was taken under the same name, unless that is empty. It returns ErrTooMany.
func (r *Registry) KeepAwake(name string, lasting time.Duration) (until time.Time, err error) {
	k := &kept{name: name, hold: r.Begin(KeepAwake, name)}
	until = time.Now().Add(lasting)
	replaced, err := r.keep(k, lasting)
	if replaced != nil {
		replaced.timer.Stop()
		replaced.hold.End()
	}
	if err != nil {
		k.hold.End()
	}
	return until, err
}

// keep lists a hold that was asked for, and returns the one whose place it takes, nil for none.
func (r *Registry) keep(k *kept, lasting time.Duration) (replaced *kept, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := slices.IndexFunc(r.kept, func(other *kept) bool { return k.name != "" && other.name == k.name })
	switch {
	case before >= 0:
		replaced, r.kept[before] = r.kept[before], k
	case len(r.kept) >= maxAsked:
		return nil, ErrTooMany
	default:
		r.kept = append(r.kept, k)
	}
	k.timer = time.AfterFunc(lasting, func() { r.release(k) })
	return replaced, nil
}

// release ends what was asked for.
func (r *Registry) release(k *kept) {
	r.mu.Lock()
	r.kept = slices.DeleteFunc(r.kept, func(other *kept) bool { return other == k })
	r.mu.Unlock()
	k.hold.End()
}

// WakeAfter has the sandbox woken after a time, if it sleeps then, and returns when. It takes the
// place of what was asked for under the same name, unless that is empty. It returns ErrTooMany.
func (r *Registry) WakeAfter(name string, after time.Duration) (at time.Time, err error) {
	now := time.Now()
	at = now.Add(after)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakes = slices.DeleteFunc(r.wakes, func(w wake) bool { return !w.at.After(now) || name != "" && w.name == name })
	if len(r.wakes) >= maxAsked {
		return time.Time{}, ErrTooMany
	}
	r.wakes = append(r.wakes, wake{name: name, at: at})
	if s := r.asleepNow(); s != nil { // it fell asleep in the middle of the program's request
		r.setTimer(s, now)
	}
	return at, nil
}

// nextWake returns the next time to wake the sandbox at, the zero time for none. The caller holds
// mu.
func (r *Registry) nextWake(now time.Time) time.Time {
	var next time.Time
	for _, w := range r.wakes {
		if w.at.After(now) && (next.IsZero() || w.at.Before(next)) {
			next = w.at
		}
	}
	return next
}
