package keys

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"time"

	"sandbox.internal/server/lifecycle"
)

// secretPrefix begins every secret that the service makes, so that programs which look for leaked
// secrets recognise it.
const secretPrefix = "sbk_"

// Spec is a key to make.
type Spec struct {
	Name      string
	Role      lifecycle.Role
	ExpiresAt time.Time // the zero time means that it does not expire
	Limits    lifecycle.KeyLimits
	Rate      *lifecycle.KeyRate // nil: that of all keys
	// TakeOver lets the key have a name that one had before, with what belongs to that name.
	TakeOver bool
}

// List returns a page of all keys, by name, and how many there are.
func (r *Ring) List(page lifecycle.Page) (items []lifecycle.APIKey, total int) {
	all := make([]lifecycle.APIKey, 0, len(r.options.Configured))
	for i := range r.options.Configured {
		all = append(all, r.shownConfigured(i))
	}
	r.mu.RLock()
	for _, k := range r.kept {
		all = append(all, r.shown(k))
	}
	r.mu.RUnlock()
	slices.SortFunc(all, func(a, b lifecycle.APIKey) int { return strings.Compare(a.Name, b.Name) })
	if from := (page.Number - 1) * page.Size; page.Number <= (len(all)+page.Size-1)/page.Size {
		items = all[from:min(from+page.Size, len(all))]
	}
	return items, len(all)
}

// Get returns a key. It returns KindNoKey.
func (r *Ring) Get(name string) (lifecycle.APIKey, error) {
	if at, ok := r.byName[name]; ok {
		return r.shownConfigured(at), nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.kept[name]; k != nil {
		return r.shown(k), nil
	}
	return lifecycle.APIKey{}, lifecycle.NoKey(name)
}

func (r *Ring) shownConfigured(at int) lifecycle.APIKey {
	key := &r.options.Configured[at]
	return lifecycle.APIKey{
		Name: key.Name, Role: key.Role, Source: lifecycle.KeyOfConfiguration, LastUsedAt: timeOf(r.uses[at].Load()), Limits: key.Own, Rate: key.OwnRate,
	}
}

// shown returns a key without its digests. The caller holds mu.
func (r *Ring) shown(k *kept) lifecycle.APIKey {
	shown := k.record
	shown.Source, shown.LastUsedAt, shown.Digest, shown.PreviousDigest = lifecycle.KeyOfService, timeOf(k.used.Load()), nil, nil
	shown.PreviousUntil = time.Time{}
	if k.previous != nil && k.previous.valid(r.clock()) {
		shown.PreviousUntil = k.previous.until
	}
	return shown
}

// Create makes a key and returns it with its secret. It returns KindInvalid for what breaks a rule,
// KindConflict for a name that is or was taken, and KindUnsupported without a store.
func (r *Ring) Create(ctx context.Context, spec Spec) (key lifecycle.APIKey, value string, err error) {
	now := r.clock().UTC()
	if err := r.admits(spec, now); err != nil {
		return key, "", err
	}
	value = secretPrefix + lifecycle.NewToken()
	record := lifecycle.APIKey{
		Name: spec.Name, Role: spec.Role, CreatedAt: now.Truncate(time.Millisecond), ExpiresAt: spec.ExpiresAt.UTC(),
		Limits: spec.Limits, Rate: spec.Rate, Digest: digestOf(value),
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	if err := r.hasRoom(spec.Name); err != nil {
		return key, "", err
	}
	err = r.options.Store.InsertAPIKey(ctx, record, spec.TakeOver)
	switch {
	case errors.Is(err, lifecycle.ErrNameHeld):
		return key, "", held(spec.Name)
	case errors.Is(err, lifecycle.ErrNameUsed):
		return key, "", lifecycle.Conflictf(
			"name: a key was called %q before, and sandboxes, volumes and images may belong to that name; choose another one, or have the new key take them over (takeOver)",
			spec.Name)
	case err != nil:
		return key, "", err
	}
	r.add(record)
	key, err = r.Get(spec.Name)
	return key, value, err
}

// admits returns an Error unless a key may be made by what it is alone.
func (r *Ring) admits(spec Spec, now time.Time) error {
	if err := r.supports(); err != nil {
		return err
	}
	if err := lifecycle.CheckKeyName(spec.Name); err != nil {
		return err
	}
	if err := lifecycle.CheckKeyExpiry(now, spec.ExpiresAt); err != nil {
		return err
	}
	if err := spec.Limits.Over(r.options.Bounds).Validate(); err != nil {
		return err
	}
	if spec.Rate != nil && spec.Rate.PerSecond == 0 && spec.Rate.Burst > 0 {
		return lifecycle.Invalidf("rateLimit.burst: needs a requestsPerSecond above 0: without it there is no limit")
	}
	if r.open {
		return lifecycle.Conflictf(
			"this service has no API key, so that every client is an administrator, and a key would not change that: set server.api_key in its configuration first")
	}
	if r.configured(spec.Name) != nil {
		return lifecycle.Conflictf("name: %q is the name of a key in the configuration of the service", spec.Name)
	}
	return nil
}

func (r *Ring) supports() error {
	if r.options.Store == nil {
		return lifecycle.Unsupportedf("%s", r.options.Unsupported)
	}
	return nil
}

func (r *Ring) hasRoom(name string) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch {
	case r.kept[name] != nil:
		return held(name)
	case len(r.kept) >= lifecycle.MaxKeys:
		return lifecycle.Conflictf("the service has %d keys, which is the most; delete one first", len(r.kept))
	}
	return nil
}

func held(name string) error {
	return lifecycle.Conflictf("name: %q is the name of a key already; rotate its secret, or delete it first", name)
}

// change returns a key of the store that is about to be changed. The caller holds changing.
func (r *Ring) change(name, action string) (*kept, error) {
	if r.configured(name) != nil {
		return nil, lifecycle.Conflictf(
			"cannot %s API key %q: it is in the configuration of the service (server.api_key, server.keys); change it there and restart the service", action, name)
	}
	if err := r.supports(); err != nil {
		return nil, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.kept[name]; k != nil {
		return k, nil
	}
	return nil, lifecycle.NoKey(name)
}

// Rotate gives a key a new secret and returns it. The one before stays valid for grace. An expiry
// that is not zero is the new one. It returns KindNoKey, KindInvalid for an expiry that is not in
// the future, and KindConflict for a key of the configuration and one that has expired.
func (r *Ring) Rotate(ctx context.Context, name string, grace time.Duration, expiresAt time.Time) (key lifecycle.APIKey, value string, err error) {
	now := r.clock().UTC()
	if err := lifecycle.CheckKeyExpiry(now, expiresAt); err != nil {
		return key, "", err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	k, err := r.change(name, "rotate")
	if err != nil {
		return key, "", err
	}
	record := k.record
	if !expiresAt.IsZero() {
		record.ExpiresAt = expiresAt.UTC()
	}
	if record.Expired(now) {
		return key, "", lifecycle.Conflictf("API key %q has expired; give it a new expiresAt", name)
	}
	value = secretPrefix + lifecycle.NewToken()
	record.PreviousDigest, record.PreviousUntil = nil, time.Time{}
	if grace > 0 && k.current.valid(now) {
		record.PreviousDigest, record.PreviousUntil = k.record.Digest, earlier(now.Add(grace).Truncate(time.Millisecond), k.record.ExpiresAt)
	}
	record.Digest = digestOf(value)
	if err := r.options.Store.SaveAPIKey(ctx, record); err != nil {
		return key, "", err
	}
	r.replace(k, record)
	key, err = r.Get(name)
	return key, value, err
}

// replace makes a key one with another secret.
func (r *Ring) replace(k *kept, record lifecycle.APIKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropSecret(k.previous)
	k.previous = nil
	if record.PreviousDigest == nil {
		r.dropSecret(k.current)
	} else {
		k.previous = k.current
		r.lastUntil(k.previous, record.PreviousUntil)
	}
	k.record, k.key = record, r.keyOf(record)
	k.current = r.addSecret(k, record.Digest, record.ExpiresAt)
}

// Delete removes a key. It returns KindNoKey, and KindConflict for a key of the configuration and
// for the last administrator's.
func (r *Ring) Delete(ctx context.Context, name string) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	k, err := r.change(name, "delete")
	if err != nil {
		return err
	}
	if k.record.Role == lifecycle.RoleAdmin && !r.hasOtherAdmin(name) {
		return lifecycle.Conflictf("API key %q is the last one with the role admin; make another one first, or set server.api_key in the configuration", name)
	}
	if err := r.options.Store.DeleteAPIKey(ctx, name, r.clock()); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropSecret(k.current)
	r.dropSecret(k.previous)
	delete(r.kept, name)
	return nil
}

// hasOtherAdmin reports whether another key than that of the name is an administrator's.
func (r *Ring) hasOtherAdmin(name string) bool {
	isAdmin := func(key Key) bool { return key.Role == lifecycle.RoleAdmin }
	if slices.ContainsFunc(r.options.Configured, isAdmin) {
		return true
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for other, k := range r.kept {
		if other != name && isAdmin(k.key) && k.current.valid(r.clock()) {
			return true
		}
	}
	return false
}

func digestOf(value string) []byte {
	digest := sha256.Sum256([]byte(value))
	return digest[:]
}
