package images

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

// Bound replaces the bounds of what an image may take.
func (s *Store) Bound(bytes, entries int64) { s.limits = imageLimits{bytes: bytes, entries: entries} }

// Pace replaces how slow registries may be.
func (s *Store) Pace(silence, window time.Duration, bytes int64) {
	s.pace.silence, s.pace.window, s.pace.bytes = silence, window, bytes
}

// SpeedWhileOthersWait replaces how slow a registry may be whose layers others wait for.
func (s *Store) SpeedWhileOthersWait(grace time.Duration, speed int64) {
	s.pace.grace, s.pace.speed = grace, speed
}

// Yields says whether a download leaves its turn to others.
func (s *Store) Yields(received int64, waited time.Duration) bool {
	return s.pace.yields(received, waited)
}

// AnswersWithin replaces how long a registry may take for all that is no layer.
func (s *Store) AnswersWithin(limit time.Duration) { s.pace.answers = limit }

// Dial replaces how hosts are reached, without a look at their certificates.
func (s *Store) Dial(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	for _, t := range []*http.Transport{s.base, s.permitted} {
		t.DialContext, t.TLSClientConfig = dial, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
	}
}

// LayersAtOnce is how many layers are downloaded at once.
const LayersAtOnce = layersAtOnce

// LayersOfHost is how many layers of one registry are downloaded at once.
const LayersOfHost = layersOfHost

// WideLayersAtOnce is how many layers with large windows are unpacked at once.
const WideLayersAtOnce = wideLayersAtOnce

// AllowsHTTP is a rule about hosts that tests cannot reach.
var AllowsHTTP = (*Store).allowsHTTP

// CheckTarget says whether the registry may lead to the target.
func (s *Store) CheckTarget(registry string, target *url.URL) error {
	parsed, err := name.NewRegistry(registry)
	if err != nil {
		return err
	}
	return s.newGuard(parsed.Repo("image"), true).check(target)
}

// Safe says whether everything is known to be safe on the disk.
func (s *Store) Safe() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.layers {
		if l.Boot != "" {
			return false
		}
	}
	return true
}

// Counted is how many bytes count towards MaxBytes.
func (s *Store) Counted() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// AsksOfHost is how many images of one registry are asked for at once.
const AsksOfHost = asksOfHost
