package enginetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/runtime/engine"
)

func (s *suite) testEnsureImage(t *testing.T) {
	ref, layer := s.registry.pushWithLayer(t, "public:1")
	s.removeImageAfter(t, ref)
	var reported []string // without a lock: progress is not called after EnsureImage returned
	id, err := s.engine.EnsureImage(t.Context(), ref, nil, func(sentence string) { reported = append(reported, sentence) })
	if err != nil {
		t.Fatalf("EnsureImage: %v", err)
	}
	if len(reported) == 0 || strings.ContainsAny(strings.Join(reported, ""), "\n\r\x1b") {
		t.Errorf("progress %q", reported)
	}
	again, err := s.engine.EnsureImage(t.Context(), ref, nil, nil)
	if err != nil || again != id || id == "" {
		t.Errorf("the second time: %q, %v; want %q", again, err, id)
	}
	if n := s.registry.fetches(layer); n != 1 {
		t.Errorf("the layer was fetched %d times", n)
	}
	spec := s.spec("exit", "0")
	spec.ImageID = id
	s.output(t, spec)

	latest := s.registry.push(t, "untagged:latest")
	s.ensureImage(t, strings.TrimSuffix(latest, ":latest"), nil)
}

func (s *suite) testEnsureImagePrivate(t *testing.T) {
	registry := newRegistry(t, s.registry.probe)
	registry.private("user", "word")
	ref := registry.push(t, "private:1")
	for name, auth := range map[string]*engine.RegistryAuth{
		"no credentials":    nil,
		"wrong credentials": {Username: "user", Password: "not-the-word"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.engine.EnsureImage(t.Context(), ref, auth, nil)
			wantError(t, err, engine.ErrImage)
			if auth != nil && err != nil && strings.Contains(err.Error(), auth.Password) {
				t.Errorf("the password is in the message: %v", err)
			}
		})
	}
	s.ensureImage(t, ref, &engine.RegistryAuth{Username: "user", Password: "word"})
}

func (s *suite) testEnsureImageRefuses(t *testing.T) {
	s.registry.push(t, "known:1")
	for name, test := range map[string]struct{ ref, says string }{
		"unknown tag":        {s.registry.host + "/known:2", "known"},
		"unknown repository": {s.registry.host + "/unknown:1", "unknown"},
		"unreachable host":   {"127.0.0.1:1/image:1", "refused"},
		"unknown host":       {"no-such-host.invalid/image:1", "no-such-host.invalid"},
		"bad reference":      {"Not A Reference", "Not A Reference"},
		"empty reference":    {"", ""},
		"unknown id":         {"sha256:" + strings.Repeat("0", 64), "No such image"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.engine.EnsureImage(t.Context(), test.ref, nil, nil)
			wantError(t, err, engine.ErrImage, test.says)
		})
	}
}

func (s *suite) testEnsureImageTogether(t *testing.T) {
	ref, layer := s.registry.pushWithLayer(t, "together:1")
	s.removeImageAfter(t, ref)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := s.engine.EnsureImage(t.Context(), ref, nil, func(string) {}); err != nil {
				t.Errorf("EnsureImage: %v", err)
			}
		})
	}
	group.Wait()
	if n := s.registry.fetches(layer); n != 1 {
		t.Errorf("the layer was fetched %d times", n)
	}
}

// testEnsureImageLeaver: the caller who started the pull leaves, and the other still gets the image
// by it.
func (s *suite) testEnsureImageLeaver(t *testing.T) {
	ref, layer := s.registry.pushWithLayer(t, "leaver:1")
	s.removeImageAfter(t, ref)
	asked, release := s.registry.hold(t, layer)
	first := s.ensureInBackground(t.Context(), ref)
	<-asked
	second := s.ensureInBackground(t.Context(), ref)
	<-second.joined
	first.leave()
	if err := <-first.result; !errors.Is(err, context.Canceled) {
		t.Errorf("the one who left got %v", err)
	}
	release()
	if err := <-second.result; err != nil {
		t.Errorf("the one who stayed got %v", err)
	}
	if n := s.registry.fetches(layer); n != 1 {
		t.Errorf("the layer was fetched %d times", n)
	}
}

// testEnsureImageAllLeave: no caller waits any more, so the pull ends; a later caller starts a new
// one.
func (s *suite) testEnsureImageAllLeave(t *testing.T) {
	ref, layer := s.registry.pushWithLayer(t, "all-leave:1")
	s.removeImageAfter(t, ref)
	asked, release := s.registry.hold(t, layer)
	first := s.ensureInBackground(t.Context(), ref)
	<-asked
	first.leave()
	if err := <-first.result; !errors.Is(err, context.Canceled) {
		t.Errorf("the one who left got %v", err)
	}
	later := s.ensureInBackground(t.Context(), ref)
	release()
	if err := <-later.result; err != nil {
		t.Errorf("the one who came later got %v", err)
	}
}

// testEnsureImageOthersCredential: while one with the password pulls, one without it is refused.
func (s *suite) testEnsureImageOthersCredential(t *testing.T) {
	registry := newRegistry(t, s.registry.probe)
	registry.private("user", "word")
	ref, layer := registry.pushWithLayer(t, "others:1")
	s.removeImageAfter(t, ref)
	asked, release := registry.hold(t, layer)
	done := make(chan error, 1)
	go func() {
		_, err := s.engine.EnsureImage(t.Context(), ref, &engine.RegistryAuth{Username: "user", Password: "word"}, nil)
		done <- err
	}()
	<-asked
	_, err := s.engine.EnsureImage(t.Context(), ref, nil, nil)
	wantError(t, err, engine.ErrImage)
	release()
	if err := <-done; err != nil {
		t.Errorf("the one with the password got %v", err)
	}
}

// background is a call of EnsureImage that goes on by itself.
type background struct {
	leave  context.CancelFunc
	joined chan struct{} // closed with the first word of progress
	result chan error
}

func (s *suite) ensureInBackground(ctx context.Context, ref string) background {
	ctx, cancel := context.WithCancel(ctx)
	b := background{leave: cancel, joined: make(chan struct{}), result: make(chan error, 1)}
	joined := sync.OnceFunc(func() { close(b.joined) })
	go func() {
		defer cancel()
		_, err := s.engine.EnsureImage(ctx, ref, nil, func(string) { joined() })
		b.result <- err
	}()
	return b
}
