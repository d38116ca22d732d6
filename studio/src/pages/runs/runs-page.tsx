export default function RunsPage() { return <div className="page"><h1>RunsPage</h1></div>; }
