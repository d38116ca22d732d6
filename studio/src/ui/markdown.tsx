// Markdown as elements of React, made from the tokens of a lexer. Nothing becomes HTML: raw HTML is
// shown as text, pictures of other sites are links, and links go to the web or to a mail program.

import type { Token, Tokens } from "marked";
import { Fragment, memo, type ReactNode, useEffect, useMemo, useRef, useState } from "react";

import { Guard } from "./guard.tsx";
import { safeAddress, tokensOf, unescaped } from "./markdown-tokens.ts";

const DEEPEST = 20;
/** Milliseconds between two readings of a text that grows. */
const SLOWLY = 100;
const SLOWEST = 5_000;

function Plain({ text }: { text: string }) {
  return <div className="value text">{text}</div>;
}

export const Markdown = memo(function Markdown({ text }: { text: string }) {
  const cost = useRef(0);
  const slow = useSlowly(text, cost);
  const tokens = useMemo(() => {
    const start = performance.now();
    const found = tokensOf(slow);
    cost.current = performance.now() - start;
    return found;
  }, [slow]);
  if (tokens === null) return <Plain text={text} />;
  return (
    <Guard of={slow} instead={() => <Plain text={slow} />}>
      <div className="markdown">{show(tokens, 0)}</div>
    </Guard>
  );
});

/** A text that grows, at most ten times a second, and less often where reading it takes long. */
function useSlowly(text: string, cost: { readonly current: number }): string {
  const [shown, setShown] = useState(text);
  const last = useRef(0);
  const grows = text.startsWith(shown) && shown !== "";
  useEffect(() => {
    if (text === shown) return;
    const wait = grows ? Math.min(SLOWEST, Math.max(SLOWLY, cost.current * 10)) : 0;
    const timer = setTimeout(
      () => {
        last.current = performance.now();
        setShown(text);
      },
      Math.max(0, last.current + wait - performance.now()),
    );
    return () => clearTimeout(timer);
  }, [text, shown, grows, cost]);
  return grows ? shown : text;
}

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
    case "checkbox":
      return (token as Tokens.Checkbox).checked ? "☑ " : "☐ ";
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
    case "table":
      return <Table table={token as Tokens.Table} depth={depth} />;
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

function Table({ table, depth }: { table: Tokens.Table; depth: number }) {
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

function SafeLink({ href, children }: { href: string; children: ReactNode }) {
  const address = safeAddress(href);
  if (address === null) return <>{children}</>;
  return (
    <a href={address} target="_blank" rel="noopener noreferrer" title={address}>
      {children}
    </a>
  );
}
