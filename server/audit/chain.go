package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

const (
	hashLength = 2 * sha256.Size
	prefix     = `{"prev":"`
	infix      = `","seq":`
	hashInfix  = `,"hash":"`
	suffix     = `"}`
	// maxLine bounds a line, in bytes. Ours are far shorter.
	maxLine = 1 << 20
)

// origin is the prev of a chain's first line.
var origin = strings.Repeat("0", hashLength)

// link is the end of a chain: what the next line builds on.
type link struct {
	seq  uint64
	hash string
}

// seal encodes l as the next line of a chain, with its newline, and returns the new end of the chain. The hash is over everything that
// stands before it in the line.
func (end link) seal(l line) ([]byte, link, error) {
	l.Prev, l.Seq = end.hash, end.seq+1
	body, err := json.Marshal(l)
	if err != nil {
		return nil, link{}, fmt.Errorf("encode: %w", err)
	}
	body = body[:len(body)-1] // its closing brace
	digest := sha256.Sum256(body)
	hash := hex.EncodeToString(digest[:])
	body = append(body, hashInfix...)
	body = append(body, hash...)
	body = append(body, suffix+"\n"...)
	return body, link{l.Seq, hash}, nil
}

var (
	errForm = errors.New("is not a line of an audit log")
	errHash = errors.New("does not fit its hash: it was changed")
)

// unseal checks one line by itself, without its newline, and returns what it says and its hash.
func unseal(text []byte) (line, string, error) {
	tail := len(hashInfix) + hashLength + len(suffix)
	if len(text) < len(prefix)+hashLength+len(infix)+tail ||
		!bytes.HasPrefix(text, []byte(prefix)) || !bytes.HasPrefix(text[len(prefix)+hashLength:], []byte(infix)) ||
		!bytes.HasPrefix(text[len(text)-tail:], []byte(hashInfix)) || !bytes.HasSuffix(text, []byte(suffix)) {
		return line{}, "", errForm
	}
	body := text[:len(text)-tail]
	hash := string(text[len(text)-len(suffix)-hashLength : len(text)-len(suffix)])
	if digest := sha256.Sum256(body); hex.EncodeToString(digest[:]) != hash {
		return line{}, "", errHash
	}
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return line{}, "", fmt.Errorf("%w: %w", errForm, err)
	}
	return l, hash, nil
}
