// Package keys holds the API keys that let requests in: those of the configuration, which stay as
// they are for as long as the service runs, and those that administrators make at the service,
// which its store keeps. Only digests of secrets are held.
package keys

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
)

// Key is an accepted API key.
type Key struct {
	Name   string
	Digest [sha256.Size]byte // SHA-256 of the key
	Role   lifecycle.Role
	Rate   serve.Rate // of its requests; the zero value means no bound

	MaxSandboxes int              // sandboxes that have not ended; 0 means no bound
	Bounds       lifecycle.Bounds // of what it may ask for

	// Own is what of these limits is the key's own, and OwnRate its own rate; for people to see.
	Own     lifecycle.KeyLimits
	OwnRate *lifecycle.KeyRate
}

// Store keeps keys. A change that a method reports as done is durable.
type Store interface {
	// APIKeys returns all keys.
	APIKeys(ctx context.Context) ([]lifecycle.APIKey, error)
	// InsertAPIKey adds a key. It returns lifecycle.ErrNameHeld when there is one of the name, and
	// lifecycle.ErrNameUsed when there was one, unless usedToo.
	InsertAPIKey(ctx context.Context, key lifecycle.APIKey, usedToo bool) error
	// SaveAPIKey replaces a key.
	SaveAPIKey(ctx context.Context, key lifecycle.APIKey) error
	// DeleteAPIKey removes a key and remembers its name.
	DeleteAPIKey(ctx context.Context, name string, now time.Time) error
	// NoteKeyNames remembers names of keys that are kept elsewhere.
	NoteKeyNames(ctx context.Context, names []string, now time.Time) error
	// NoteKeyUses records when keys were used last.
	NoteKeyUses(ctx context.Context, uses map[string]time.Time) error
}

// Options configures a [Ring].
type Options struct {
	// Configured are the keys of the configuration. Without any key, the service is open.
	Configured []Key
	// Store keeps the other keys; nil means that there are none, and none can be made.
	Store Store
	// Unsupported is why none can be made without a Store, for people.
	Unsupported string
	// Rate and Bounds are those of keys that have none of their own.
	Rate   serve.Rate
	Bounds lifecycle.Bounds
	// Clock returns the present time; nil means time.Now.
	Clock  func() time.Time
	Logger zerolog.Logger
}

// Ring holds the keys. Methods may be called concurrently.
type Ring struct {
	options Options
	clock   func() time.Time
	log     zerolog.Logger
	open    bool
	byName  map[string]int // the configured keys
	salt    [sha256.Size]byte
	uses    []atomic.Int64 // of the configured keys, in Unix seconds

	changing sync.Mutex // held during a change, with the store's part of it

	mu      sync.RWMutex
	kept    map[string]*kept
	secrets map[index]*secret

	stop    context.CancelFunc // nil without a store
	stopped chan struct{}
}

// index is where a secret is in the map: which depends on a salt of the process, so that how long
// it takes to look says nothing about digests.
type index [sha256.Size]byte

// kept is a key of the store.
type kept struct {
	record   lifecycle.APIKey // but for LastUsedAt
	key      Key
	used     atomic.Int64 // Unix seconds; 0 is never
	recorded int64        // what of it the store has; only [Ring.Flush] touches it
	current  *secret
	previous *secret // nil when there is none
}

// secret is one of a key's secrets.
type secret struct {
	of     *kept
	digest [sha256.Size]byte
	until  time.Time // the zero time means no end
	alive  context.Context
	end    context.CancelFunc
}

// Found is the key of a valid secret.
type Found struct {
	Key
	// Alive ends when the secret ceases to be valid; nil means that it does not while the service
	// runs.
	Alive context.Context
}

// Fixed returns the keys of a configuration alone. It needs no Close.
func Fixed(configured ...Key) *Ring {
	r := newRing(Options{Configured: configured, Unsupported: "this service keeps no API keys beside those of its configuration"})
	r.open = len(configured) == 0
	return r
}

func newRing(options Options) *Ring {
	r := &Ring{
		options: options, clock: options.Clock, log: options.Logger.With().Str("component", "keys").Logger(),
		uses: make([]atomic.Int64, len(options.Configured)), kept: map[string]*kept{}, secrets: map[index]*secret{},
	}
	r.byName = make(map[string]int, len(options.Configured))
	for i := range options.Configured {
		r.byName[options.Configured[i].Name] = i
	}
	if r.clock == nil {
		r.clock = time.Now
	}
	_, _ = rand.Read(r.salt[:]) // never returns an error
	return r
}

// New returns the keys of a configuration and those of a store, which it keeps from then on:
// [Ring.Close] ends that.
func New(ctx context.Context, options Options) (*Ring, error) {
	r := newRing(options)
	if options.Store == nil {
		r.open = len(options.Configured) == 0
		return r, nil
	}
	records, err := options.Store.APIKeys(ctx)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	names := make([]string, len(options.Configured))
	for i := range options.Configured {
		names[i] = options.Configured[i].Name
	}
	if err := options.Store.NoteKeyNames(ctx, names, r.clock()); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	for _, record := range records {
		if r.configured(record.Name) != nil {
			r.log.Warn().Str("key_name", record.Name).
				Msg("the configuration has a key of the name of one that was made at the service, which is not valid for as long as that is so")
			continue
		}
		r.add(record)
	}
	// Without a key in the configuration, keys of the store keep the service closed: it must not
	// open because a line is missing.
	r.open = len(options.Configured) == 0 && len(records) == 0
	var background context.Context
	background, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.stopped = make(chan struct{})
	go r.flushUntil(background)
	return r, nil
}

// Close records the latest uses, and cuts off what keys of the store have begun.
func (r *Ring) Close() {
	if r.stop == nil {
		return
	}
	r.stop()
	<-r.stopped
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.secrets {
		s.end()
	}
}

// Open reports whether the service has no keys and admits every request.
func (r *Ring) Open() bool { return r.open }

// Configured returns the keys of the configuration.
func (r *Ring) Configured() []Key { return r.options.Configured }

func (r *Ring) configured(name string) *Key {
	if at, ok := r.byName[name]; ok {
		return &r.options.Configured[at]
	}
	return nil
}

// Find returns the key of a secret, and notes that it was used.
func (r *Ring) Find(presented string) (Found, bool) {
	digest := sha256.Sum256([]byte(presented))
	if at := r.findConfigured(digest); at >= 0 {
		use(&r.uses[at], r.clock())
		return Found{Key: r.options.Configured[at]}, true
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := r.findKept(digest)
	if s == nil {
		return Found{}, false
	}
	use(&s.of.used, r.clock())
	return Found{Key: s.of.key, Alive: s.alive}, true
}

// Holds reports whether a text is a valid secret.
func (r *Ring) Holds(text string) bool {
	digest := sha256.Sum256([]byte(text))
	if r.findConfigured(digest) >= 0 {
		return true
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.findKept(digest) != nil
}

// findConfigured returns the position of a configured key, -1 for none. Every key is compared, so
// that the duration reveals nothing about any of them: people may have chosen them, and they may be
// short.
func (r *Ring) findConfigured(digest [sha256.Size]byte) int {
	found := -1
	for i := range r.options.Configured {
		if subtle.ConstantTimeCompare(digest[:], r.options.Configured[i].Digest[:]) == 1 {
			found = i
		}
	}
	return found
}

// findKept returns a valid secret of a key of the store, nil for none. The caller holds mu.
func (r *Ring) findKept(digest [sha256.Size]byte) *secret {
	if len(r.secrets) == 0 {
		return nil
	}
	s := r.secrets[r.indexOf(digest)]
	if s == nil || subtle.ConstantTimeCompare(digest[:], s.digest[:]) != 1 || !s.valid(r.clock()) {
		return nil
	}
	return s
}

func (s *secret) valid(now time.Time) bool { return s.until.IsZero() || now.Before(s.until) }

func (r *Ring) indexOf(digest [sha256.Size]byte) (at index) {
	mac := hmac.New(sha256.New, r.salt[:])
	mac.Write(digest[:])
	mac.Sum(at[:0])
	return at
}

// Named returns the key of a name that is valid now.
func (r *Ring) Named(name string) (Found, bool) {
	if key := r.configured(name); key != nil {
		return Found{Key: *key}, true
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	k := r.kept[name]
	if k == nil || !k.current.valid(r.clock()) {
		return Found{}, false
	}
	return Found{Key: k.key, Alive: k.current.alive}, true
}

// Alive returns what ends when the present secret of a key ceases to be valid; nil means that it
// does not while the service runs.
func (r *Ring) Alive(name string) context.Context {
	found, ok := r.Named(name)
	if !ok && !r.open {
		ended, end := context.WithCancel(context.Background())
		end()
		return ended
	}
	return found.Alive
}

// add takes a key up. The caller holds changing, or is New.
func (r *Ring) add(record lifecycle.APIKey) {
	k := &kept{record: record, key: r.keyOf(record)}
	if !record.LastUsedAt.IsZero() {
		k.used.Store(record.LastUsedAt.Unix())
		k.recorded = record.LastUsedAt.Unix()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept[record.Name] = k
	k.current = r.addSecret(k, record.Digest, record.ExpiresAt)
	if record.PreviousDigest != nil {
		k.previous = r.addSecret(k, record.PreviousDigest, earlier(record.PreviousUntil, record.ExpiresAt))
	}
}

func (r *Ring) keyOf(record lifecycle.APIKey) Key {
	key := Key{
		Name: record.Name, Role: record.Role, Rate: r.options.Rate, MaxSandboxes: record.Limits.MaxSandboxes,
		Bounds: record.Limits.Over(r.options.Bounds), Own: record.Limits, OwnRate: record.Rate,
	}
	if record.Rate != nil {
		key.Rate = RateOf(*record.Rate)
	}
	copy(key.Digest[:], record.Digest)
	return key
}

// RateOf returns a rate as package serve takes it: without a burst, a second's requests may come at
// once.
func RateOf(rate lifecycle.KeyRate) serve.Rate {
	burst := rate.Burst
	if burst == 0 {
		burst = rate.PerSecond
	}
	return serve.Rate{PerSecond: float64(rate.PerSecond), Burst: burst}
}

// addSecret makes a secret of a key valid until a time. The caller holds mu.
func (r *Ring) addSecret(of *kept, digest []byte, until time.Time) *secret {
	s := &secret{of: of, until: until}
	copy(s.digest[:], digest)
	r.lastUntil(s, until)
	r.secrets[r.indexOf(s.digest)] = s
	return s
}

// lastUntil makes what the secret lets in end at that time, at the latest. The caller holds mu.
func (r *Ring) lastUntil(s *secret, until time.Time) {
	alive, end := context.WithCancel(context.Background())
	if s.alive != nil {
		alive, end = s.alive, s.end
	}
	s.alive, s.end, s.until = alive, end, until
	if until.IsZero() {
		return
	}
	// The wait is by the process's own clock, which runs while the time of day is set.
	timer := time.AfterFunc(until.Sub(r.clock()), end)
	context.AfterFunc(alive, func() { timer.Stop() })
}

// dropSecret makes a secret invalid at once. The caller holds mu.
func (r *Ring) dropSecret(s *secret) {
	if s != nil {
		delete(r.secrets, r.indexOf(s.digest))
		s.end()
	}
}

// earlier returns the earlier of two times, where the zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
