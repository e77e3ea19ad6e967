package console

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/server/lifecycle"
)

// Marks is what replicas of a service remember together: names, each until a time.
type Marks interface {
	// Mark makes a mark, and reports whether there was none of the name before.
	Mark(ctx context.Context, name string, until time.Time) (first bool, err error)
	// Marked reports whether there is a mark of the name.
	Marked(ctx context.Context, name string) (bool, error)
}

// Shared makes a session of one replica of a service a session of all of them: its cookie says,
// signed, what a replica must know of it. Ended sessions and used tickets are marked, because they
// must not be valid again.
type Shared struct {
	// Key signs cookies and tickets. It is the same at all replicas.
	Key   []byte
	Marks Marks
	// Fingerprint returns what is the same as long as a holder's API key and role are, and false
	// for a holder whose key is none of the service any more: then a session ends.
	Fingerprint func(principal lifecycle.Principal) (string, bool)
}

// endedInterval is how often a request that goes on looks whether its session has ended elsewhere.
const endedInterval = 2 * time.Second

// maxCookie bounds a cookie, in bytes: browsers keep no larger ones.
const maxCookie = 4096

// carried is what a cookie says.
type carried struct {
	ID          string         `json:"i"`
	Name        string         `json:"n"`
	Role        lifecycle.Role `json:"r"`
	Began       int64          `json:"b"` // Unix seconds
	ExpiresAt   int64          `json:"e"` // Unix seconds
	Token       []byte         `json:"t"` // the digest of the token
	Fingerprint string         `json:"f"`
}

func (s *Shared) sign(purpose string, parts ...string) []byte {
	mac := hmac.New(sha256.New, s.Key)
	for _, part := range append([]string{"console", purpose}, parts...) {
		fmt.Fprintf(mac, "%d:%s", len(part), part)
	}
	return mac.Sum(nil)
}

// cookie returns the cookie of a session.
func (s *Shared) cookie(of *session) (string, error) {
	fingerprint, _ := s.Fingerprint(of.principal)
	text, err := json.Marshal(carried{
		of.id, of.principal.Name, of.principal.Role, of.began.Unix(), of.expiresAt.Unix(), of.token[:],
		fingerprint,
	})
	if err != nil {
		return "", err
	}
	body := base64.RawURLEncoding.EncodeToString(text)
	return body + "." + base64.RawURLEncoding.EncodeToString(s.sign("session", body)), nil
}

// read returns the session that a cookie of any replica says, nil for every other cookie and one
// whose time is over.
func (s *Shared) read(cookie string) *session {
	body, signature, ok := strings.Cut(cookie, ".")
	if !ok || len(cookie) > maxCookie {
		return nil
	}
	mac, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || !hmac.Equal(mac, s.sign("session", body)) {
		return nil
	}
	text, err := base64.RawURLEncoding.DecodeString(body)
	var c carried
	if err != nil || json.Unmarshal(text, &c) != nil || len(c.Token) != sha256.Size {
		return nil
	}
	principal := lifecycle.Principal{Name: c.Name, Role: c.Role}
	if fingerprint, known := s.Fingerprint(principal); !known || fingerprint != c.Fingerprint {
		return nil
	}
	found := &session{
		id: c.ID, principal: principal, began: time.Unix(c.Began, 0),
		expiresAt: time.Unix(c.ExpiresAt, 0).UTC(),
	}
	copy(found.token[:], c.Token)
	if !time.Now().Before(found.expiresAt) {
		return nil
	}
	found.alive, found.end = context.WithDeadline(context.Background(), found.expiresAt)
	return found
}

// over ends a session here that has ended at another replica. It returns an error when that cannot
// be found out.
func (s *Shared) over(ctx context.Context, of *session) (bool, error) {
	ended, err := s.Marks.Marked(ctx, "session "+of.id)
	if ended {
		of.end()
	}
	return ended, err
}

// markEnded ends a session at all replicas.
func (s *Shared) markEnded(ctx context.Context, of *session) error {
	_, err := s.Marks.Mark(ctx, "session "+of.id, of.expiresAt)
	return err
}

// watch ends a session here soon after it has ended elsewhere, until ctx ends.
func (s *Shared) watch(ctx context.Context, of *session) {
	ticker := time.NewTicker(endedInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if ended, _ := s.over(ctx, of); ended { // an API server that does not answer ends no session
			return
		}
	}
}

// ticket returns a ticket that any replica redeems.
func (s *Shared) ticket(of *session, path string) string {
	nonce := rand.Text()
	until := strconv.FormatInt(time.Now().Add(ticketLife).Unix(), 10)
	return nonce + "." + until + "." + hex.EncodeToString(s.sign("ticket", of.id, path, until, nonce))
}

// redeem reports whether a ticket is good for a path, and voids it.
func (s *Shared) redeem(ctx context.Context, of *session, secret, path string) (bool, error) {
	parts := strings.Split(secret, ".")
	if len(parts) != 3 {
		return false, nil
	}
	nonce, until := parts[0], parts[1]
	mac, err := hex.DecodeString(parts[2])
	if err != nil || !hmac.Equal(mac, s.sign("ticket", of.id, path, until, nonce)) {
		return false, nil
	}
	seconds, err := strconv.ParseInt(until, 10, 64)
	expiry := time.Unix(seconds, 0)
	if err != nil || !time.Now().Before(expiry) {
		return false, nil
	}
	return s.Marks.Mark(ctx, "ticket "+nonce, expiry)
}

// byCookieOfAny adds to the sessions that are known here those that other replicas have begun.
func (s *sessions) byCookieOfAny(r *http.Request, found []*session) []*session {
	for i, cookie := range r.CookiesNamed(cookieName) {
		at := digestOf(cookie.Value)
		if i >= maxCookies || s.all[at] != nil {
			continue
		}
		if begun := s.shared.read(cookie.Value); begun != nil {
			s.prune()
			s.all[at] = begun
			found = append(found, begun)
		}
	}
	return found
}
