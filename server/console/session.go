package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
)

const (
	cookieName  = "sandbox-console"
	tokenHeader = "X-Sandbox-Console"

	// maxSessions is how many sessions one key may have at a time; a further one ends the oldest.
	maxSessions = 32
	// maxCookies bounds how many cookies of the name are looked at: pages on other ports of the
	// host can set more of them.
	maxCookies = 8
	// maxTickets is how many unused tickets a session may have; a further one voids the oldest.
	maxTickets = 16
	// ticketLife is how long a ticket is good.
	ticketLife = 30 * time.Second
)

// errEnded is the cause of a request's end when its session has ended.
var errEnded = errors.New("the session has ended")

type digest = [sha256.Size]byte

func digestOf(secret string) digest { return sha256.Sum256([]byte(secret)) }

// sessions are kept in memory alone, by the digests of their cookies, so that a restart ends all of
// them, unless replicas share them.
type sessions struct {
	shared *Shared // nil when there is one service alone

	mu  sync.Mutex
	all map[digest]*session
}

func newSessions(shared *Shared) *sessions {
	return &sessions{shared: shared, all: map[digest]*session{}}
}

// session is a browser that a user has signed in with.
type session struct {
	id        string // no secret; replicas name the session by it
	principal lifecycle.Principal
	began     time.Time
	expiresAt time.Time
	token     digest
	key       context.Context // ends when the key ceases to be valid; nil means that it stays valid
	alive     context.Context
	end       context.CancelFunc

	mu      sync.Mutex
	tickets []ticket // oldest first
}

// ticket lets one WebSocket in, whose handshake cannot carry a header of the page's own.
type ticket struct {
	digest    digest
	path      string
	expiresAt time.Time
}

// begin returns a new session and its two secrets. The session ends with key, if that is not nil.
func (s *sessions) begin(
	ctx context.Context,
	principal lifecycle.Principal,
	key context.Context,
	life time.Duration,
) (begun *session, cookie, token string, err error) {
	cookie, token = rand.Text(), rand.Text()
	now := time.Now()
	begun = &session{
		id:        rand.Text(),
		principal: principal,
		key:       key,
		began:     now,
		expiresAt: now.Add(life).UTC().Truncate(time.Second),
		token:     digestOf(token),
	}
	if s.shared != nil {
		if cookie, err = s.shared.cookie(begun); err != nil {
			return nil, "", "", err
		}
	}
	begun.alive, begun.end = context.WithTimeout(context.Background(), life)
	if key != nil { // what the session has begun ends, too
		forget := context.AfterFunc(key, begun.end)
		context.AfterFunc(begun.alive, func() { forget() })
	}
	if oldest := s.add(begun, cookie); oldest != nil {
		if err := s.stop(ctx, oldest); err != nil {
			begun.end()
			return nil, "", "", err
		}
	}
	return begun, cookie, token, nil
}

// live reports whether neither the session nor its key has ended.
func (s *session) live() bool {
	return s.alive.Err() == nil && (s.key == nil || s.key.Err() == nil)
}

// add returns the session that must end for the new one.
func (s *sessions) add(begun *session, cookie string) (oldest *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune()
	var same []*session
	for _, other := range s.all {
		if other.principal.Name == begun.principal.Name {
			same = append(same, other)
		}
	}
	if len(same) >= maxSessions {
		oldest = slices.MinFunc(same, func(a, b *session) int { return a.began.Compare(b.began) })
	}
	s.all[digestOf(cookie)] = begun
	return oldest
}

// prune forgets sessions that have ended. The caller holds mu.
func (s *sessions) prune() {
	maps.DeleteFunc(s.all, func(_ digest, other *session) bool { return !other.live() })
}

// stop ends a session, at every replica.
func (s *sessions) stop(ctx context.Context, ended *session) error {
	if s.shared != nil {
		if err := s.shared.markEnded(ctx, ended); err != nil {
			return err
		}
	}
	ended.end()
	return nil
}

// of returns the session that a request carries both secrets of.
func (s *sessions) of(r *http.Request) (*session, error) {
	token := digestOf(r.Header.Get(tokenHeader))
	for _, candidate := range s.byCookie(r) {
		if subtle.ConstantTimeCompare(token[:], candidate.token[:]) != 1 {
			continue
		}
		if s.shared == nil {
			return candidate, nil
		}
		ended, err := s.shared.over(r.Context(), candidate)
		if err != nil {
			return nil, err
		}
		if !ended {
			return candidate, nil
		}
	}
	return nil, serve.Unauthorized(
		"cookie %s and header %s: are no session of the console; sign in",
		cookieName,
		tokenHeader,
	)
}

// byCookie returns the sessions whose cookies a request carries, several where another page has
// set one.
func (s *sessions) byCookie(r *http.Request) (found []*session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, cookie := range r.CookiesNamed(cookieName) {
		if known := s.all[digestOf(cookie.Value)]; i < maxCookies && known != nil && known.live() {
			found = append(found, known)
		}
	}
	if s.shared != nil {
		found = s.byCookieOfAny(r, found)
	}
	return found
}

// end ends the session of a request, if it has one.
func (s *sessions) end(r *http.Request) error {
	if ended, err := s.of(r); err == nil {
		return s.stop(r.Context(), ended)
	}
	return nil
}

// ticket returns a ticket of a session for one WebSocket at a path of the API.
func (s *sessions) ticket(of *session, path string) string {
	if s.shared != nil {
		return s.shared.ticket(of, path)
	}
	return of.issue(path)
}

// redeem reports whether a ticket of a session is good for a path, and voids it.
func (s *sessions) redeem(r *http.Request, of *session, secret, path string) (bool, error) {
	if s.shared == nil {
		return of.redeem(secret, path), nil
	}
	if ended, err := s.shared.over(r.Context(), of); err != nil || ended {
		return false, err
	}
	return s.shared.redeem(r.Context(), of, secret, path)
}

func (s *sessions) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, each := range s.all {
		each.end()
	}
	clear(s.all)
}

// issue returns a ticket for one WebSocket at a path of the API.
func (s *session) issue(path string) string {
	secret := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tickets) == maxTickets {
		s.tickets = slices.Delete(s.tickets, 0, 1)
	}
	s.tickets = append(s.tickets, ticket{digestOf(secret), path, time.Now().Add(ticketLife)})
	return secret
}

// redeem reports whether a ticket is good for the path, and voids it.
func (s *session) redeem(secret, path string) bool {
	presented := digestOf(secret)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.tickets,
		func(t ticket) bool { return subtle.ConstantTimeCompare(t.digest[:], presented[:]) == 1 })
	if at < 0 {
		return false
	}
	found := s.tickets[at]
	s.tickets = slices.Delete(s.tickets, at, at+1)
	return found.path == path && time.Now().Before(found.expiresAt)
}

// ofBrowser is the session's cookie. It stays below the console's path, and goes along with
// requests of pages of the same site alone.
func ofBrowser(r *http.Request, value string, expires time.Time) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: home, Expires: expires,
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: overTLS(r),
	}
}
