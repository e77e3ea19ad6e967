package e2b

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/random"
)

// pages is a service with a list of sandboxes, newest first, that may change after each request.
type pages struct {
	list   []lifecycle.Sandbox
	asked  int
	change func()
}

// ServeHTTP answers GET /v1/sandboxes.
func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.asked++
	number, _ := strconv.Atoi(r.URL.Query().Get("page"))
	size, _ := strconv.Atoi(r.URL.Query().Get("pageSize"))
	items := []map[string]any{}
	for i := (number - 1) * size; i < number*size && i < len(p.list); i++ {
		items = append(items, map[string]any{"id": p.list[i].ID, "createdAt": p.list[i].CreatedAt, "status": map[string]any{"state": "Running"}})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"items": items, "pagination": map[string]any{"totalItems": len(p.list)}})
	if p.change != nil {
		p.change()
	}
}

func (p *pages) add() {
	n := len(p.list) + p.asked*1000
	made := lifecycle.Sandbox{ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), CreatedAt: now.Add(time.Duration(n) * time.Second)}
	if len(p.list) > 0 && !p.list[0].CreatedAt.Before(made.CreatedAt) {
		made.CreatedAt = p.list[0].CreatedAt.Add(time.Millisecond)
	}
	p.list = slices.Insert(p.list, 0, made)
}

// all reads the list as a client does, and calls between after each page.
func (p *pages) all(t *testing.T, query string, between func()) (ids []string) {
	t.Helper()
	token := ""
	for range 10_000 {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/v2/sandboxes?"+query+"&nextToken="+url.QueryEscape(token), nil)
		(&exchange{edge: &Edge{Options: Options{Next: p}}, w: w, r: r}).list()
		var page []info
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		for _, sandbox := range page {
			ids = append(ids, sandbox.SandboxID)
		}
		if token = w.Header().Get(nextHeader); token == "" {
			return ids
		}
		between()
	}
	t.Fatal("the list has no end")
	return nil
}

// TestPages: whatever is created and ends between two pages, every sandbox that was there from the
// first to the last is listed once, in the order that was asked for.
func TestPages(t *testing.T) {
	numbers := random.New(t)
	for range 200 {
		p := &pages{}
		for range numbers.IntN(60) {
			p.add()
		}
		stays := map[string]bool{}
		for _, s := range p.list {
			stays[externalID(s.ID)] = true
		}
		order := []string{"asc", "desc"}[numbers.IntN(2)]
		query := fmt.Sprintf("limit=%d&order=%s", 1+numbers.IntN(20), order)
		listed := p.all(t, query, func() { p.shuffle(numbers, stays) })
		seen := map[string]bool{}
		for _, id := range listed {
			if seen[id] {
				t.Errorf("%s: %s is listed twice", query, id)
			}
			seen[id] = true
		}
		for id := range stays {
			if !seen[id] {
				t.Errorf("%s: %s is not listed", query, id)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
}

// shuffle creates and ends some sandboxes.
func (p *pages) shuffle(numbers *rand.Rand, stays map[string]bool) {
	for range numbers.IntN(4) {
		p.add()
	}
	for range numbers.IntN(6) {
		if len(p.list) > 0 {
			at := numbers.IntN(len(p.list))
			delete(stays, externalID(p.list[at].ID))
			p.list = slices.Delete(p.list, at, at+1)
		}
	}
}

// TestPagesAreFoundAtOnce: a long list costs a few pages of the service for each page of the client,
// not the whole list.
func TestPagesAreFoundAtOnce(t *testing.T) {
	p := &pages{}
	for range 1000 {
		p.add()
	}
	if listed := p.all(t, "limit=100", func() {}); len(listed) != 1000 || p.asked > 20 {
		t.Errorf("%d sandboxes by %d requests", len(listed), p.asked)
	}
}

// TestGuessedCursor: a cursor's place is what the client makes of it, and costs no more than a few
// requests.
func TestGuessedCursor(t *testing.T) {
	p := &pages{}
	for range 30 {
		p.add()
	}
	last := p.list[9]
	for _, passed := range []int{-1, 0, 3, 10, 11, 29, 1000, 1 << 62} {
		p.asked = 0
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/v2/sandboxes?limit=10&nextToken="+cursor{last.CreatedAt, last.ID, passed}.String(), nil)
		(&exchange{edge: &Edge{Options: Options{Next: p}}, w: w, r: r}).list()
		var page []info
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || len(page) != 10 || page[0].SandboxID != externalID(p.list[10].ID) || p.asked > 6 {
			t.Errorf("after %d: %d requests, %v, %s", passed, p.asked, err, w.Body)
		}
	}
}
