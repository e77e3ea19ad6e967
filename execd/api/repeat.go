package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"sandbox.internal/openapi/serve"
)

const (
	// maxKeys is how many Idempotency-Keys are known; the oldest is forgotten first.
	maxKeys = 1000
	// transitTime is how long a repetition may be on its way. Its age is from when it was sent, and
	// execd-init's socket takes connections while there is no execd.
	transitTime = time.Second
)

// repeats is what requests with an Idempotency-Key have made.
type repeats struct {
	since time.Time // what an earlier execd has made is not known
	mu    sync.Mutex
	byKey map[string]*creation
	order []string // keys, oldest first
}

// creation is what one request makes.
type creation struct {
	digest [sha256.Size]byte // of the operation and the body
	done   chan struct{}     // closed when it is made, or cannot be
	id     string
	err    error
}

func newRepeats() *repeats { return &repeats{since: time.Now(), byKey: make(map[string]*creation)} }

// repeat is what a request says about its own repetition.
type repeat struct {
	key *string // its Idempotency-Key
	age *int64  // its Idempotency-Age
}

// once calls create, unless an earlier request had the same key, whose id it returns then. It waits
// for an earlier one that is still at it. What could not be made is not remembered. Without a key
// it only calls create. A repetition of a request that an earlier execd may have received is
// refused, because commands outlive an execd that is killed.
func (r *repeats) once(ctx context.Context, operation string, request repeat, create func() (id string, err error)) (string, error) {
	key := request.key
	if key == nil {
		return create()
	}
	digest := digestOf(operation, serve.JSONBody(ctx))
	for {
		m, again, err := r.take(*key, digest, request.age)
		if err != nil {
			return "", err
		}
		if !again {
			return r.make(*key, m, create)
		}
		id, err := m.wait(ctx, *key, digest)
		// The client of the first request has left before it was made, and this request is its
		// repetition.
		if !errors.Is(err, context.Canceled) || ctx.Err() != nil {
			return id, err
		}
	}
}

// digestOf identifies what a request asks for.
func digestOf(operation string, body []byte) (digest [sha256.Size]byte) {
	hash := sha256.New() // which takes every write
	_, _ = io.WriteString(hash, operation+"\n")
	_, _ = hash.Write(body)
	hash.Sum(digest[:0])
	return digest
}

// take returns what a key makes or has made, or reserves the key. A key that is not known is
// refused when an earlier execd may know it: when its first request was sent so many milliseconds
// ago that this execd was not there.
func (r *repeats) take(key string, digest [sha256.Size]byte, age *int64) (m *creation, again bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m, again = r.byKey[key]; again {
		return m, true, nil
	}
	if age != nil && time.Since(r.since) < time.Duration(*age)*time.Millisecond+transitTime {
		return nil, false, conflict("execd was started again since the request was first sent: whether it took effect is not known")
	}
	m = &creation{digest: digest, done: make(chan struct{}), err: errNotMade}
	r.add(key, m)
	return m, false, nil
}

// make calls create for a key that is reserved.
func (r *repeats) make(key string, m *creation, create func() (string, error)) (string, error) {
	defer close(m.done)
	defer func() {
		if m.err != nil {
			r.forget(key, m)
		}
	}()
	m.id, m.err = create()
	return m.id, m.err
}

var errNotMade = errors.New("the request with this Idempotency-Key did not end")

func (m *creation) wait(ctx context.Context, key string, digest [sha256.Size]byte) (string, error) {
	if m.digest != digest {
		return "", conflict("header Idempotency-Key: " + key + " was used with another request")
	}
	select {
	case <-m.done:
		return m.id, m.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// add records a key. The caller holds mu.
func (r *repeats) add(key string, m *creation) {
	if len(r.order) == maxKeys {
		delete(r.byKey, r.order[0])
		r.order = slices.Delete(r.order, 0, 1)
	}
	r.byKey[key] = m
	r.order = append(r.order, key)
}

func (r *repeats) forget(key string, m *creation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey[key] != m {
		return // forgotten before, and perhaps used again
	}
	delete(r.byKey, key)
	r.order = slices.DeleteFunc(r.order, func(other string) bool { return other == key })
}

// gone is the error for something that a key has made and that cannot be had any more.
func gone(key *string, err error) error {
	if key == nil || err == nil {
		return err
	}
	return conflict("header Idempotency-Key: what " + *key + " made is gone: " + err.Error())
}

func conflict(message string) error {
	return &serve.Problem{Status: http.StatusConflict, Code: "CONFLICT", Message: message}
}
