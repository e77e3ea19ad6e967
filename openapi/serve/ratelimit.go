package serve

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"sandbox.internal/openapi/serve/internal/problem"
)

// codeRateLimited is the code of a 429.
const codeRateLimited = "RATE_LIMITED"

// Rate is how often something may happen: PerSecond on average, and Burst times at
// once after a rest. A PerSecond of 0 means that there is no limit; a Burst below 1
// counts as 1.
type Rate struct {
	PerSecond float64
	Burst     int
}

// RateLimits bounds how often a service may be called. A request over a limit gets a 429 response,
// with Retry-After, before any of its body is read. Operations that need no key are not counted,
// and a stream counts once, at its start.
type RateLimits struct {
	// Of returns the caller of an authenticated request, and the rate that it may have;
	// nil sets no limit. Requests of one caller share one count.
	Of func(r *http.Request, principal any) (caller string, rate Rate)
	// Refused is how often one remote address (of IPv6 its /64 network) may send a missing or wrong
	// key, or something as wrong in its place (see Server.Attempt). Once that is used up, every
	// request with or without a key is refused until the next attempt is due, so that keys cannot
	// be guessed any faster.
	Refused Rate
	// Clock returns the time; nil means time.Now.
	Clock func() time.Time
}

// checkRate counts a request of an authenticated caller, and refuses it over the limit.
func (s *Server) checkRate(r *http.Request) error {
	of := s.options.RateLimits.Of
	if of == nil {
		return nil
	}
	caller, rate := of(r, Principal(r.Context()))
	if wait := s.callers.take(caller, rate); wait > 0 {
		return tooMany(wait, "the rate limit of %g requests a second (%d at once) is used up",
			rate.PerSecond, max(rate.Burst, 1))
	}
	return nil
}

// checkAttempts refuses a request whose address has sent too many wrong keys, before its key
// is checked: else the answer would distinguish a right guess from a wrong one.
func (s *Server) checkAttempts(r *http.Request) error {
	if wait := s.refused.wait(NetworkOf(r), s.options.RateLimits.Refused); wait > 0 {
		return tooMany(wait, "too many requests with a missing or wrong key came from this address")
	}
	return nil
}

func (s *Server) noteRefusal(r *http.Request, err error) {
	var problem *problem.Problem
	if errors.As(err, &problem) && problem.Status == http.StatusUnauthorized {
		s.refused.take(NetworkOf(r), s.options.RateLimits.Refused)
	}
}

func tooMany(wait time.Duration, format string, args ...any) *problem.Problem {
	return &problem.Problem{
		Status:     http.StatusTooManyRequests,
		Code:       codeRateLimited,
		Message:    fmt.Sprintf(format, args...) + "; Retry-After says when to try again",
		RetryAfter: wait,
	}
}

// NetworkOf is where a request comes from: an IPv4 address, or the IPv6 network that
// one customer usually has.
func NetworkOf(r *http.Request) string {
	host := remoteHost(r.RemoteAddr)
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().Is6() {
		if network, err := ip.WithZone("").Prefix(64); err == nil {
			return network.String()
		}
	}
	return host
}

// buckets are token buckets by name. Of each it keeps only the time at which the
// bucket will be full again: what is full is removed, so that names which are never
// seen again do not pile up.
type buckets struct {
	clock func() time.Time

	mu      sync.Mutex
	full    map[string]time.Time
	sweepAt int // the number of entries at which to look for those to remove
}

const fewestToSweep = 1024

func newBuckets(clock func() time.Time) *buckets {
	if clock == nil {
		clock = time.Now
	}
	return &buckets{clock: clock, full: map[string]time.Time{}, sweepAt: fewestToSweep}
}

// take takes a token out of the bucket of that name. When there is none it takes
// nothing and returns how long it is until there will be one.
func (b *buckets) take(name string, rate Rate) time.Duration {
	return b.check(name, rate, true)
}

// wait returns how long it is until there is a token in the bucket, and takes none.
func (b *buckets) wait(name string, rate Rate) time.Duration {
	return b.check(name, rate, false)
}

func (b *buckets) check(name string, rate Rate, take bool) time.Duration {
	if rate.PerSecond <= 0 {
		return 0
	}
	// A token every step fills the bucket in burst steps.
	step := time.Duration(float64(time.Second) / rate.PerSecond)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock()
	full := b.full[name]
	if full.Before(now) {
		full = now
	}
	if wait := full.Sub(now) - step*time.Duration(max(rate.Burst, 1)-1); wait > 0 {
		return wait
	}
	if take {
		b.full[name] = full.Add(step)
		b.sweep(now)
	}
	return 0
}

// sweep removes full buckets once there are twice as many as were left the last time.
// The caller holds mu.
func (b *buckets) sweep(now time.Time) {
	if len(b.full) < b.sweepAt {
		return
	}
	for name, full := range b.full {
		if !full.After(now) {
			delete(b.full, name)
		}
	}
	b.sweepAt = max(fewestToSweep, 2*len(b.full))
}
