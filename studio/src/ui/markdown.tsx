// Markdown as elements of React, made from the tokens of a lexer. Nothing becomes HTML: raw HTML is
// shown as text, pictures of other sites are links, and links go to the web or to a mail program.

import { lexer, type Token, type Tokens } from "marked";
import { Component, Fragment, memo, type ReactNode } from "react";

const LONGEST = 100_000;
const DEEPEST = 20;

class Boundary extends Component<{ text: string; children: ReactNode }, { failed: string | null }> {
  override state = { failed: null as string | null };

  static getDerivedStateFromError(): null {
    return null;
  }

  override componentDidCatch(): void {
    this.setState({ failed: this.props.text });
  }

  override render(): ReactNode {
    if (this.state.failed === this.props.text) return <div className="value text">{this.props.text}</div>;
    return this.props.children;
  }
}

/** How deep quotes and lists of a text are inside each other, at most: a cheap look before the lexer. */
function isTooDeep(text: string): boolean {
  return /^(?:[ \t]*(?:>|[-*+]|\d{1,9}[.)])[ \t]*){20}/m.test(text) || /^[ \t]{60,}[-*+>]/m.test(text) || /[[(*_~`]{200}/.test(text);
}

export const Markdown = memo(function Markdown({ text }: { text: string }) {
  if (text.length > LONGEST || isTooDeep(text)) return <div className="value text">{text}</div>;
  let tokens: Token[];
  try {
    tokens = lexer(text, { gfm: true, breaks: true });
  } catch {
    return <div className="value text">{text}</div>;
  }
  return (
    <Boundary text={text}>
      <div className="markdown">{show(tokens, 0)}</div>
    </Boundary>
  );
});

function show(tokens: Token[] | undefined, depth: number): ReactNode {
  if (tokens === undefined) return null;
  if (depth > DEEPEST) return tokens.map((token) => token.raw).join("");
  return tokens.map((token, index) => <Fragment key={index}>{one(token, depth)}</Fragment>);
}

function one(token: Token, depth: number): ReactNode {
  const inner = () => show((token as { tokens?: Token[] }).tokens, depth + 1);
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return <p className="strong">{inner()}</p>;
    case "paragraph":
      return <p>{inner()}</p>;
    case "text":
      return (token as Tokens.Text).tokens ? inner() : unescaped((token as Tokens.Text).text);
    case "escape":
      return (token as Tokens.Escape).text;
    case "strong":
      return <strong>{inner()}</strong>;
    case "em":
      return <em>{inner()}</em>;
    case "del":
      return <del>{inner()}</del>;
    case "codespan":
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "br":
      return <br />;
    case "hr":
      return <hr />;
    case "code":
      return (
        <pre tabIndex={0}>
          <code>{(token as Tokens.Code).text}</code>
        </pre>
      );
    case "blockquote":
      return <blockquote>{inner()}</blockquote>;
    case "list": {
      const list = token as Tokens.List;
      const items = list.items.map((item, index) => <li key={index}>{show(item.tokens, depth + 1)}</li>);
      return list.ordered ? <ol start={Number(list.start) || 1}>{items}</ol> : <ul>{items}</ul>;
    }
    case "table": {
      const table = token as Tokens.Table;
      return (
        <table>
          <thead>
            <tr>
              {table.header.map((cell, index) => (
                <th key={index}>{show(cell.tokens, depth + 1)}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {table.rows.map((row, index) => (
              <tr key={index}>
                {row.map((cell, at) => (
                  <td key={at}>{show(cell.tokens, depth + 1)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      );
    }
    case "link":
      return <SafeLink href={(token as Tokens.Link).href}>{inner()}</SafeLink>;
    case "image": {
      const image = token as Tokens.Image;
      return <SafeLink href={image.href}>🖼 {image.text || image.href}</SafeLink>;
    }
    default:
      return token.raw; // HTML and all else is text
  }
}

/** The lexer keeps entities; React escapes again. */
function unescaped(text: string): string {
  return text.replace(/&(amp|lt|gt|quot|#39);/g, (_, name: string) => ({ amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'" })[name] ?? "");
}

function SafeLink({ href, children }: { href: string; children: ReactNode }) {
  let safe: URL | null = null;
  try {
    safe = new URL(href);
  } catch {
    // It is relative, or no address: its text is shown.
  }
  if (safe === null || !["http:", "https:", "mailto:"].includes(safe.protocol)) return <>{children}</>;
  return (
    <a href={safe.href} target="_blank" rel="noopener noreferrer" title={safe.href}>
      {children}
    </a>
  );
}
